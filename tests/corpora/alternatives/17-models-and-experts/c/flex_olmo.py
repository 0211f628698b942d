"""A table of the fields; every layer is said once."""


def parts(config):
    fields = {
        "norms": POST_NORM,
        "qk_norm": "all",
        "feed_forwards": ("moe",) * int(config["num_hidden_layers"]),
    }
    return Parts(**fields)


def args(config):
    said = {
        "num_experts": "num_experts",
        "num_experts_per_tok": "num_experts_per_tok",
        "moe_intermediate_size": "intermediate_size",
        "norm_topk_prob": "norm_topk_prob",
    }
    fields = {field: config[key] for field, key in said.items()}
    activation = config.get("hidden_act")
    if activation is not None:
        fields["hidden_act"] = activation
    return dict(moe=MoEArgs(routing="fused_topk", **fields))
