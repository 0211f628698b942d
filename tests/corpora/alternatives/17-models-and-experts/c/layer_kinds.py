"""Sets of numbers for each way to say it."""


def layer_windows(config, every):
    window = config.get("sliding_window")
    count = config["num_hidden_layers"]
    types = config.get("layer_types") or [
        "full_attention" if number % every == 0 else "sliding_attention"
        for number in range(1, count + 1)
    ]
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def dense_layers(config):
    every = set(range(config["num_hidden_layers"]))
    found = set(range(config.get("first_k_dense_replace") or 0))
    found.update(config.get("mlp_only_layers") or [])
    step = config.get("decoder_sparse_step")
    if step:
        found |= every - set(range(step - 1, len(every), step))
    step = config.get("moe_layer_freq")
    if step:
        found |= every - set(range(0, len(every), step))
    return tuple(sorted(found & every))
