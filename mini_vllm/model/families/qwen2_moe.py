"""Qwen2-MoE: Qwen2 with experts, and a shared expert whose output is multiplied by a gate.

Source: vllm/model_executor/models/qwen2_moe.py#L125-L193 (Qwen2MoeSparseMoeBlock) @ v0.22.1.
"""

from typing import Any

from mini_vllm.model.config_rules import BOOLEAN, integer
from mini_vllm.model.families.experts import COUNT, SIZE, feed_forwards, qwen_experts
from mini_vllm.model.families.layer_kinds import dense_layers
from mini_vllm.model.families.table import Config, Family, Parts


def parts(config: Config) -> Parts:
    return Parts(feed_forwards=feed_forwards(config, dense_layers(config)))


def experts(config: Config) -> dict[str, Any]:
    return {"moe": qwen_experts(config), "qkv_bias": config["qkv_bias"], "o_bias": False}


def windows(config: Config) -> tuple[int | None, ...]:
    """A window in every second layer before layer `max_window_layers`, if switched on."""
    is_on, first = config.get("use_sliding_window"), config["max_window_layers"]
    kinds = config.get("layer_types") or [
        "sliding_attention" if is_on and index % 2 and index <= first else "full_attention"
        for index in range(1, config["num_hidden_layers"] + 1)
    ]
    window = config["sliding_window"] if is_on else None
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


QWEN2_MOE = Family(
    defaults={
        "decoder_sparse_step": 1,
        "max_position_embeddings": 32768,
        "max_window_layers": 28,
        "moe_intermediate_size": 1408,
        "norm_topk_prob": False,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "num_key_value_heads": 16,
        "qkv_bias": True,
        "shared_expert_intermediate_size": 5632,
        "sliding_window": 4096,
    },
    rules={
        "num_experts": COUNT,
        "qkv_bias": BOOLEAN,
        "shared_expert_intermediate_size": SIZE,
        "sliding_window": integer(0, 2**31 - 1).or_null(),  # transformers writes 0 for none
    },
    windows=windows,
    args=experts,
    parts=parts,
    can_be_recorded=False,
)
