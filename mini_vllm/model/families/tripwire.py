"""Config entries and tensors that change what a model computes, with the feature that each needs.

A family reads the entries of its own class. Any other entry in this table is refused if it is
switched on, because a model that ignores it would produce fluent but wrong text. For an unknown
family, the same table says which features it would need.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from mini_vllm.errors import show

OFF: tuple[Any, ...] = (None, False, 0, 0.0, "", [], {})
"""Values that switch an entry off; a scale is also off at 1."""

SCALES = dict.fromkeys(
    (
        "attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling",
        "logit_scale", "lm_head_multiplier", "key_multiplier", "attention_in_multiplier",
        "attention_out_multiplier", "ssm_in_multiplier", "ssm_out_multiplier", "scale_emb",
        "scale_depth", "attention_value_scale", "routed_scaling_factor",
    ),
    "a scale",
)  # fmt: skip
EFFECTS: dict[str, str] = {
    **SCALES,
    "attn_logit_softcapping": "capped scores",
    "final_logit_softcapping": "capped logits",
    "mlp_multipliers": "scales",
    "ssm_multipliers": "scales",
    "use_parallel_residual": "attention and MLP side by side",
    "parallel_attn": "attention and MLP side by side",
    "parallel_residual": "attention and MLP side by side",
    "use_qk_norm": "norms of queries and keys",
    "qk_layernorm": "norms of queries and keys",
    "use_qk_layernorm": "norms of queries and keys",
    "clip_qkv": "clipped queries, keys and values",
    "no_rope_layers": "layers without a rotation",
    "rope_interleave": "a rotation of neighbouring features",
    "rope_interleaved": "a rotation of neighbouring features",
    "alibi": "scores that fall with the distance (ALiBi)",
    "use_alibi": "scores that fall with the distance (ALiBi)",
    "attn_temperature_tuning": "queries that grow with the position",
    "attention_chunk_size": "attention in chunks",
    "attn_output_gate": "a gate on what attention gives",
    "use_output_gate": "a gate on what attention gives",
    "add_swa_attention_sink_bias": "sinks",
    "add_full_attention_sink_bias": "sinks",
    "kv_lora_rank": "latent attention",
    "q_lora_rank": "latent attention",
    "index_topk": "attention that picks tokens by an index of its own",
    "compress_ratios": "attention over compressed keys",
    "num_kv_shared_layers": "layers that share keys and values",
    "num_local_experts": "experts",
    "num_experts": "experts",
    "n_routed_experts": "experts",
    "moe_num_experts": "experts",
    "ffn_config": "experts",
    "n_shared_experts": "shared experts",
    "shared_expert_intermediate_size": "a shared expert",
    "zero_expert_num": "experts that do nothing",
    "linear_num_value_heads": "a state (linear attention)",
    "linear_attn_config": "a state (linear attention)",
    "mamba_d_state": "a state (Mamba)",
    "mamba_n_heads": "a state (Mamba)",
    "mamba_num_heads": "a state (Mamba)",
    "ssm_state_size": "a state (Mamba)",
    "state_size": "a state (Mamba)",
    "conv_L_cache": "a state (short convolutions)",
    "lru_width": "a state (a linear recurrence)",
    "wkv_head_size": "a state (RWKV)",
    "head_size_divisor": "a state (RWKV)",
    "hidden_size_per_layer_input": "embeddings for each layer",
    "altup_num_inputs": "several streams",
    "hc_mult": "several streams",
    "lm_head_bias": "a head with a bias",
    "is_encoder_decoder": "an encoder",
    "encoder_layers": "an encoder",
    "use_bidirectional_attention": "attention to tokens that follow",
    "audio_config": "an encoder for sounds",
    "vision_config": "an encoder for pictures",
}
"""The feature that each entry switches on."""

FOREIGN: dict[str, str] = {
    "layer_norm_eps": "LayerNorms in place of RMSNorms",
    "layer_norm_epsilon": "LayerNorms in place of RMSNorms",
    "norm_epsilon": "LayerNorms in place of RMSNorms",
    "position_embedding_type": "positions by another rule",
    "n_positions": "learned positions",
    "activation_function": "an MLP without a gate",
}
"""Further entries of unknown families that name a feature."""

TENSORS: tuple[tuple[str, str], ...] = (
    (r"\.(q|k|query|key)_(norm|layernorm)\.", "norms of queries and keys"),
    (r"\.sinks$", "sinks"),
    (r"e_score_correction_bias$", "a router that chooses with a bias"),
    (r"shared_experts?(_gate)?\.", "shared experts"),
    (r"\.experts?\.|\.router\.|block_sparse_moe", "experts"),
    (r"(_blocks|_scales)$", "numbers in mxfp4"),
    (r"(qweight|qzeros|weight_packed|weight_scale|scales)$", "quantised weights; see quantization"),
    (r"linear_attn|mamba|\.conv1d\.|A_log$|\.mixer\.|\.ssm", "a state"),
    (r"kv_a_proj|kv_b_proj|q_a_proj", "latent attention"),
    (r"(pre|post)_(feedforward|mlp|self_attn)_layernorm", "norms behind attention and MLP"),
    (r"lora_[AB]", "an adapter; merge it, or give it as LoRARequest"),
    (r"^(score|classifier|v_head|reward)", "a head that classifies"),
    (r"vision|visual|image", "an encoder for pictures"),
    (r"audio", "an encoder for sounds"),
    (r"mtp\.|nextn|eh_proj|enorm", "layers that draft several tokens at once (MTP)"),
    (r"lm_head\.bias$", "a head with a bias"),
    (r"\.bias$", "biases; see attention_bias and mlp_bias"),
)
"""Patterns of tensor names, and the feature that a model with such tensors needs."""


def switched_on(config: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """The entries of `names` that the config has with a value that changes something."""
    found = []
    for name in names:
        value = config.get(name)
        is_neutral = name in SCALES and value == 1 and not isinstance(value, bool)
        if name == "no_rope_layers" and isinstance(value, list) and all(value):
            is_neutral = True  # they say which layers *have* a rotation
        if not is_neutral and not any(value is off or value == off for off in OFF):
            found.append(name)
    return found


def check_effects(
    config: Mapping[str, Any], read: Collection[str], family: str, source: str
) -> None:
    """Raise ValueError for the first entry that is switched on but not read by the family."""
    for name in switched_on(config, (name for name in EFFECTS if name not in read)):
        raise ValueError(
            f"{source}: {name} is {show(config[name])}; {family} is computed here without "
            f"{EFFECTS[name]}, and would answer wrongly; if the file is right, this model "
            "cannot be served here; if not, take the entry out"
        )


def needs(config: Mapping[str, Any]) -> str:
    """The features that an unknown family would need, by its config; "" if none are found."""
    by_part: dict[str, list[str]] = {}
    for name in switched_on(config, (*EFFECTS, *FOREIGN)):
        part = EFFECTS.get(name) or FOREIGN[name]
        by_part.setdefault(part, []).append(f"{name} {show(config[name])}")
    for kind in dict.fromkeys(config.get("layer_types") or ()):
        if kind not in ("full_attention", "sliding_attention"):
            by_part.setdefault("other layers", []).append(f"layer_types {show(kind)}")
    return ", ".join(f"{part} ({', '.join(why)})" for part, why in by_part.items())


def explained(message: str) -> str:
    """A message about a checkpoint's tensors, with the feature of the first tensor added."""
    name = re.search(r"first '([^']+)'", message)
    part = next((part for pattern, part in TENSORS if name and re.search(pattern, name[1])), "")
    return f"{message} (the first belongs to: {part})" if part else message
