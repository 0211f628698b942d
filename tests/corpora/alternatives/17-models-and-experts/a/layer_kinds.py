"""Plain loops, one question after the other."""


def layer_windows(config, every):
    window, found = config.get("sliding_window"), []
    for index in range(config["num_hidden_layers"]):
        if config.get("layer_types"):
            slides = config["layer_types"][index] == "sliding_attention"
        else:
            slides = index % every != every - 1
        found.append(window if slides else None)
    return tuple(found)


def dense_layers(config):
    layers = config["num_hidden_layers"]
    sparse = set(range(layers))
    if config.get("first_k_dense_replace") is not None:
        sparse -= set(range(config["first_k_dense_replace"]))
    if config.get("mlp_only_layers") is not None:
        sparse -= set(config["mlp_only_layers"])
    if config.get("decoder_sparse_step") is not None:
        step = config["decoder_sparse_step"]
        sparse &= set(range(step - 1, layers, step))
    if config.get("moe_layer_freq") is not None:
        sparse &= set(range(0, layers, config["moe_layer_freq"]))
    return tuple(sorted(set(range(layers)) - sparse))
