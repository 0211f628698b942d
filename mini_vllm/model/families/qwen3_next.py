"""Qwen3-Next and Qwen3.5 (text): three layers with a state for each layer with attention.

    linear_attention   Gated DeltaNet: one matrix per head, for any length
    full_attention     grouped-query attention whose output is multiplied by sigmoid(gate); a
                       quarter of each head is rotated

Norms multiply by 1 + w, except the one inside a Gated DeltaNet. Qwen3-Next has experts in each
layer, and a shared expert; Qwen3.5 is dense or has experts.

Source: vllm/model_executor/models/qwen3_next.py#L324-L461 (Qwen3NextDecoderLayer) @ v0.22.1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mini_vllm.model.config_rules import integer, list_of, one_of
from mini_vllm.model.families.experts import qwen_experts
from mini_vllm.model.families.table import LLAMA_STACKS, Config, Family, Parts
from mini_vllm.model.mixers.args import GatedDeltaArgs
from mini_vllm.model.moe.args import MoEArgs

KINDS = ("linear_attention", "full_attention")
STATE_SIZE = integer(1, 2**16)


def layer_kinds(config: Config) -> list[str]:
    """The kind of each layer: listed, or attention in every `full_attention_interval`-th."""
    num_layers, listed = config["num_hidden_layers"], config.get("layer_types")
    if listed is None:
        every = config["full_attention_interval"]
        return [KINDS[(index + 1) % every == 0] for index in range(num_layers)]
    return list(listed)


def parts(config: Config) -> Parts:
    moe = experts(config)
    dense = range(config["num_hidden_layers"]) if moe is None else moe.dense_layers
    mixers = {"full_attention": "gated_attention", "linear_attention": "gated_delta"}
    if "Qwen3NextForCausalLM" in config["architectures"]:
        mixers["linear_attention"] = "gated_delta_by_key_head"
    return Parts(
        norm="gemma",
        mixers=[mixers[kind] for kind in layer_kinds(config)],
        feed_forwards=[
            "gated_mlp" if index in dense else "moe" for index in range(config["num_hidden_layers"])
        ],
        qk_norm="head",
    )


def experts(config: Config) -> MoEArgs | None:
    """The experts; None for a dense model."""
    return qwen_experts(config) if config.get("num_experts") else None


def args(config: Config) -> dict[str, Any]:
    """Raises ValueError for value heads that key heads cannot share evenly."""
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    if values % keys:
        raise ValueError(
            f"linear_num_value_heads is {values} and linear_num_key_heads {keys}; each key head "
            "serves equally many value heads, so the first must be a multiple of the second"
        )
    delta = GatedDeltaArgs(
        num_key_heads=keys,
        num_value_heads=values,
        key_head_dim=config["linear_key_head_dim"],
        value_head_dim=config["linear_value_head_dim"],
        conv_kernel_dim=config["linear_conv_kernel_dim"],
    )
    return {"gated_delta": delta, "moe": experts(config)}


DEFAULTS: dict[str, Any] = {
    "head_dim": 256,
    "max_position_embeddings": 32768,
    "partial_rotary_factor": 0.25,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "num_key_value_heads": 2,
}
EXPERTS: dict[str, Any] = {
    "intermediate_size": 5632,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "decoder_sparse_step": 1,
    "norm_topk_prob": True,
}
QWEN3_NEXT = Family(
    defaults={**DEFAULTS, **EXPERTS, "num_experts": 512, "num_experts_per_tok": 10},
    rules={
        "layer_types": list_of(one_of(*KINDS), f"kinds, one a layer: {', '.join(KINDS)}").or_null(),
        "full_attention_interval": integer(1, 1024),
        "linear_conv_kernel_dim": integer(2, 64),
        "linear_key_head_dim": STATE_SIZE,
        "linear_value_head_dim": STATE_SIZE,
        "linear_num_key_heads": STATE_SIZE,
        "linear_num_value_heads": STATE_SIZE,
        "shared_expert_intermediate_size": STATE_SIZE,
    },
    parts=parts,
    args=args,
    names={
        f"self_attn.{name}": f"linear_attn.{name}"
        for name in ("in_proj_", "conv1d", "A_log", "dt_bias", "norm.", "out_proj")
    },
    stacked={**LLAMA_STACKS, "in_proj_qkv": ["in_proj_qkv"], "conv1d": ["conv1d"]},
    supports=frozenset({"states", "tp"}),
    can_be_recorded=False,
    ignores=("mtp.",),  # multi-token-prediction layers
)
QWEN3_5 = replace(QWEN3_NEXT, defaults={**DEFAULTS, "num_key_value_heads": 4, "num_experts": 0})
QWEN3_5_MOE = replace(
    QWEN3_NEXT, defaults={**DEFAULTS, **EXPERTS, "num_experts": 256, "num_experts_per_tok": 8}
)
