"""Every field written out."""


def parts(config):
    from mini_vllm.model.families.table import Norms

    num_layers = config["num_hidden_layers"]
    norms = Norms(
        before_mixer=None,
        after_mixer="post_attention_layernorm",
        before_mlp=None,
        after_mlp="post_feedforward_layernorm",
    )
    return Parts(
        norm="rms",
        norms=norms,
        mixers=["attention"] * num_layers,
        feed_forwards=["moe"] * num_layers,
        qk_norm="all",
        rotates=[True] * num_layers,
    )


def args(config):
    return {
        "moe": MoEArgs(
            config["num_experts"],
            config["num_experts_per_tok"],
            config["intermediate_size"],
            "fused_topk",
            config["norm_topk_prob"],
            hidden_act=config.get("hidden_act") or "silu",
        )
    }
