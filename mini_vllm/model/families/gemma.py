"""Gemma, Gemma 2 and Gemma 3 (text).

Norms multiply by 1 + weight, and embeddings are multiplied by sqrt(hidden_size).

    Gemma     Llama's layer
    Gemma 2   four norms per layer, a window in every second layer, capped scores and logits
    Gemma 3   four norms per layer, a norm of each query and key, a window in five layers of six;
              layers with a window have a rotation of their own

Source: vllm/model_executor/models/gemma2.py#L187-L250 (Gemma2DecoderLayer) @ v0.22.1.
Source: vllm/model_executor/models/gemma3.py#L228-L293 (Gemma3DecoderLayer) @ v0.22.1.
"""

from dataclasses import replace
from typing import Any

from mini_vllm.model.config_rules import number
from mini_vllm.model.families.table import (
    SANDWICH,
    Config,
    Family,
    Parts,
    windows_by_layer,
    windows_by_pattern,
)

CAP = number(1e-6, 1e9).or_null()
DEFAULTS = {
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}


def gemma_parts(config: Config) -> Parts:
    return Parts(
        norm="gemma", embedding_scale=config["hidden_size"] ** 0.5, rounds_embedding_scale=True
    )


def gemma2_parts(config: Config) -> Parts:
    return replace(
        gemma_parts(config),
        norms=SANDWICH,
        attention_softcap=config["attn_logit_softcapping"],
        logit_softcap=config["final_logit_softcapping"],
    )


def gemma3_parts(config: Config) -> Parts:
    return replace(gemma_parts(config), norms=SANDWICH, qk_norm="head")


def rewrite(config: dict[str, Any]) -> dict[str, Any]:
    """Early files say "gelu" but mean its tanh approximation."""
    exact = {key: "gelu_pytorch_tanh" for key in ACTS if config.get(key) == "gelu"}
    return {**config, **exact}


ACTS = ("hidden_act", "hidden_activation")
GEMMA = Family(defaults=DEFAULTS, parts=gemma_parts, rewrite=rewrite)
GEMMA2 = Family(
    defaults={
        **DEFAULTS,
        "num_key_value_heads": 4,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    rules={"attn_logit_softcapping": CAP, "final_logit_softcapping": CAP},
    windows=windows_by_layer(every=2),
    parts=gemma2_parts,
)
GEMMA3 = Family(
    defaults={
        **DEFAULTS,
        "max_position_embeddings": 131072,
        "num_key_value_heads": 4,
        "query_pre_attn_scalar": 256,
        "rope_local_base_freq": 1e4,
        "rope_theta": 1e6,
        "sliding_window": 4096,
    },
    windows=windows_by_pattern(every=6),
    has_ropes_by_layer=True,
    parts=gemma3_parts,
    supports=frozenset({"tp", "pp", "lora", "quantization", "compile"}),
)
