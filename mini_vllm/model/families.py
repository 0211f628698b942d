"""What the families of models leave out of their `config.json`, and where they read it differently.

A config file holds only what differs from its class's defaults, and each class has its own. This is
the one table of them; how a family computes is in a file of its own (`qwen3.py`, `gemma3.py`, ...).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

FAMILIES: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {},
    "Qwen2ForCausalLM": {},
    "Qwen3ForCausalLM": {"head_dim": 128},
    "Qwen3MoeForCausalLM": {
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "decoder_sparse_step": 1,
    },
    "Qwen3VLForConditionalGeneration": {  # of its decoder
        "head_dim": 128,
        "rope_theta": 500000.0,
        "max_position_embeddings": 128000,
    },
    "MistralForCausalLM": {"sliding_window": 4096, "max_position_embeddings": 131072},
    "Phi3ForCausalLM": {"rms_norm_eps": 1e-5, "max_position_embeddings": 4096},
    "Olmo2ForCausalLM": {"rms_norm_eps": 1e-5},
    "Gemma3ForCausalLM": {
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
    },
}
"""By architecture: the defaults of its config class where they are not Llama's."""

WINDOW_IN_ALL_LAYERS = ("MistralForCausalLM", "Phi3ForCausalLM")
WINDOW_BY_PATTERN = ("Gemma3ForCausalLM",)
EVERY_SIXTH = 6
"""Of Gemma 3's layers sees the whole context; those between see a window."""


def family(config: Mapping[str, Any]) -> str:
    """The first architecture of the config that is known here; "" without one."""
    names = config.get("architectures")
    if not isinstance(names, list):
        return ""
    return next((name for name in names if isinstance(name, str) and name in FAMILIES), "")


def is_foreign(config: Mapping[str, Any]) -> bool:
    """Whether the config names architectures, and none that is known here."""
    names = config.get("architectures")
    is_list = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return is_list and bool(names) and not family(config)


def with_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with what its class would add. An explicit null stays: it may mean "none"."""
    whole = {**FAMILIES.get(family(config), {}), **config}
    if "num_local_experts" in config:  # as newer files of transformers spell it
        whole["num_experts"] = config["num_local_experts"]
    return whole


def sliding_windows(config: Mapping[str, Any]) -> tuple[int | None, ...]:
    """The attention window of each layer, None for the whole context.

    Mistral and Phi-3 have one for all layers or none; Gemma 3 says by layer, or by a pattern; Qwen
    switches it on by `use_sliding_window`, from layer `max_window_layers` on.
    """
    num_layers, name = config["num_hidden_layers"], family(config)
    window = config.get("sliding_window")
    if name in WINDOW_IN_ALL_LAYERS:
        return (window,) * num_layers
    if name in WINDOW_BY_PATTERN:
        every = config.get("sliding_window_pattern") or EVERY_SIXTH
        is_sliding = [bool((index + 1) % every) for index in range(num_layers)]
    else:
        window = config.get("sliding_window", 4096) if config.get("use_sliding_window") else None
        first = config.get("max_window_layers")
        is_sliding = [index >= (28 if first is None else first) for index in range(num_layers)]
    if kinds := config.get("layer_types"):
        is_sliding = [kind == "sliding_attention" for kind in kinds]
    return tuple(window if slides else None for slides in is_sliding)


def unsupported(architectures: Sequence[str], known: Sequence[str] = tuple(FAMILIES)) -> str:
    """Says that nothing here runs these, and what comes nearest."""

    def stem(name: str) -> str:
        return name.partition("For")[0].lower()

    stems = {stem(name): name for name in known}
    wanted = stem(architectures[0]) if architectures else ""
    nearest = difflib.get_close_matches(wanted, stems, n=1, cutoff=0.0)
    hint = f"; the nearest is {stems[nearest[0]]}" if wanted else ""
    return (
        f"architecture {list(architectures)} is not supported; supported are {sorted(known)}{hint}"
    )
