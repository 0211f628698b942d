"""Predicates, and a filter over the layers."""


def layer_windows(config, every):
    kinds = config.get("layer_types")
    num_layers = config["num_hidden_layers"]
    window = config.get("sliding_window")
    if not kinds:
        return tuple(None if (index + 1) % every == 0 else window for index in range(num_layers))
    return tuple(map({"sliding_attention": window}.get, kinds))


def dense_layers(config):
    def entry(name):
        value = config.get(name)
        return value if value else None

    front, listed = entry("first_k_dense_replace"), entry("mlp_only_layers")
    from_one, from_zero = entry("decoder_sparse_step"), entry("moe_layer_freq")

    def is_dense(index):
        return (
            (front is not None and index < front)
            or (listed is not None and index in listed)
            or (from_one is not None and index % from_one != from_one - 1)
            or (from_zero is not None and index % from_zero != 0)
        )

    return tuple(filter(is_dense, range(config["num_hidden_layers"])))
