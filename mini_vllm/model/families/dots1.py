"""dots.llm1: a norm over each head's query and key, and DeepSeek V3's router.

Source: vllm/model_executor/models/dots1.py#L276-L338 (Dots1DecoderLayer) @ v0.22.1.
"""

from typing import Any

from mini_vllm.model.families.experts import (
    COUNT,
    deepseek_experts,
    feed_forwards,
    first_dense,
)
from mini_vllm.model.families.glm4_moe import GLM4_MOE
from mini_vllm.model.families.table import Config, Family, Parts


def windows(config: Config) -> tuple[int | None, ...]:
    """In the layers that `layer_types` names, or from layer `max_window_layers` on."""
    kinds = config.get("layer_types") or [
        "sliding_attention" if index >= config["max_window_layers"] else "full_attention"
        for index in range(config["num_hidden_layers"])
    ]
    window = config["sliding_window"]
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def parts(config: Config) -> Parts:
    return Parts(feed_forwards=feed_forwards(config, first_dense(config)), qk_norm="head")


def args(config: Config) -> dict[str, Any]:
    return {"moe": deepseek_experts(config)}


DOTS1 = Family(
    defaults={
        "first_k_dense_replace": 0,
        "max_window_layers": 62,
        "moe_intermediate_size": 1408,
        "n_group": 1,
        "n_shared_experts": None,
        "norm_topk_prob": False,
        "num_key_value_heads": 32,
        "routed_scaling_factor": 1.0,
        "sliding_window": 4096,
        "topk_group": 1,
    },
    rules={
        name: GLM4_MOE.rules[name].or_null()
        for name in ("first_k_dense_replace", "n_group", "n_shared_experts", "topk_group")
    }
    | {"n_routed_experts": COUNT, "num_experts_per_tok": COUNT},
    windows=windows,
    args=args,
    parts=parts,
    can_be_recorded=False,
)
