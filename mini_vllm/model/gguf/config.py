"""From the metadata of a GGUF file to the entries of a `config.json`.

    llama.embedding_length 576                   ->  "hidden_size": 576
    tokenizer.ggml.eos_token_id 2                ->  "eos_token_id": [2]
    no tensor output.weight                      ->  "tie_word_embeddings": true
    tensor rope_freqs.weight                     ->  "rope_scaling": {"short_factor": [...], ...}

For entries that the file leaves out the defaults are those of llama.cpp.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mini_vllm.errors import show
from mini_vllm.gguf import FLOATS, Array, GGUFFile, read_gguf
from mini_vllm.model.config_rules import check_entries, one_of
from mini_vllm.model.config_schema import CONFIG, GENERATION_CONFIG

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
}
"""The supported values of `general.architecture`, and our architecture for each."""

ENTRIES = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
"""Keys after `general.architecture` and a dot, and their names in a `config.json`."""
OWN_ENTRIES = {
    "qwen3moe": {
        "expert_count": "num_experts",
        "expert_used_count": "num_experts_per_tok",
        "expert_feed_forward_length": "moe_intermediate_size",
    },
    "gemma3": {
        "attention.sliding_window": "sliding_window",
        "rope.freq_base_swa": "rope_local_base_freq",
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
    },
    "phi3": {"attention.sliding_window": "sliding_window"},
}
CONSTANTS: dict[str, dict[str, Any]] = {
    "qwen3moe": {"norm_topk_prob": True},
    "gemma3": {"rope_theta": 1e6, "rope_local_base_freq": 1e4},
}
"""Entries that no file has, because they are equal in all models of an architecture."""
REFUSED = {
    "llama": {"expert_count": "experts are supported in qwen3moe only"},
    "qwen3moe": {"expert_shared_count": "experts that all tokens share are not supported"},
    "olmo2": {"attention.sliding_window": "OLMo 3 is not supported; OLMo 2 has no window"},
}
"""Entries that mean an unsupported model if they are present and not 0."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.output_scale": (0.0, 1.0),
    "attention.temperature_scale": (0.0,),
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "expert_weights_scale": (0.0, 1.0),
    "expert_weights_norm": (True,),
    "use_parallel_residual": (False,),
}
"""Entries that change results, and their values that do not. An architecture that does not read one
refuses any other value."""
GEMMA3_27B_LAYERS = 62
"""The one Gemma 3 whose scores are not divided by the square root of 256."""

SAMPLING = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}
"""The authors' sampling parameters, and their names in a `generation_config.json`."""
ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
"""Keys after `tokenizer.ggml.`: tokens that end an answer, a turn and a message."""
TURN_ENDS = frozenset(("<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<|end|>"))
"""The spellings of end-of-turn tokens. Many files name the end of a text but not that of a turn."""
CONTROL = 3
"""The `tokenizer.ggml.token_type` of a token that is not text."""


def read_config(path: str | Path) -> dict[str, Any]:
    """The entries of a GGUF file as those of a `config.json`.

    Raises ValueError that names the file, the key, its value and what is allowed.
    """
    file = read_gguf(path)
    arch = architecture(file)
    entries = ENTRIES | OWN_ENTRIES.get(arch, {})
    names = {f"{arch}.{key}": ours for key, ours in entries.items()}
    found = {key: one_value(file, key) for key in names if key in file.metadata}
    if not found.get(f"{arch}.attention.sliding_window", True):
        del found[f"{arch}.attention.sliding_window"]  # 0: none
    check_entries(found, {key: CONFIG[ours] for key, ours in names.items()}, str(path))
    config = CONSTANTS.get(arch, {}) | {names[key]: value for key, value in found.items()}
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    if arch == "gemma3" and layers == GEMMA3_27B_LAYERS:
        config["query_pre_attn_scalar"] = config["hidden_size"] / heads
    config.setdefault("head_dim", config["hidden_size"] // heads)
    _refuse_others(file, arch, config.get("query_pre_attn_scalar", config["head_dim"]) ** -0.5)
    config |= {
        "architectures": [ARCHITECTURES[arch]],
        "vocab_size": _vocab_size(file),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": arch != "qwen2" and "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
        "eos_token_id": end_tokens(file),
        "dtype": _dtype(file),
    }
    return config | _rope(file, arch, config)


def read_generation_config(path: str | Path) -> dict[str, Any]:
    """The authors' sampling parameters as the entries of a `generation_config.json`."""
    metadata = read_gguf(path).metadata
    return {ours: metadata[key] for key, ours in SAMPLING.items() if key in metadata}


def architecture(file: GGUFFile) -> str:
    """The file's architecture. Raises ValueError if it is not supported; it lists those that
    are."""
    arch = file.metadata.get("general.architecture")
    rule = one_of(*ARCHITECTURES)
    kind = file.metadata.get("general.type", "model")
    if kind != "model":
        raise ValueError(
            f"{file.path}: general.type is {show(kind)}; it must be 'model'; give the file of a "
            "whole language model"
        )
    if not rule.legal(arch):
        found = "missing" if arch is None else show(arch)
        raise ValueError(f"{file.path}: general.architecture is {found}; {rule.says}")
    return str(arch)


def end_tokens(file: GGUFFile) -> list[int]:
    """Tokens that end an answer. Raises ValueError for a value that is not a token id.

    If the file does not name the end-of-turn token, it is found by its spelling, as in llama.cpp.
    """
    ids = {key: file.metadata.get(f"tokenizer.ggml.{key}") for key in ENDS}
    rules = dict.fromkeys(ids, GENERATION_CONFIG["eos_token_id"])
    check_entries(ids, rules, str(file.path), "tokenizer.ggml.")
    ends = [token for token in ids.values() if token is not None]
    if ids["eot_token_id"] is None:
        if "turn ends" not in file.known:  # cached: reading a vocabulary takes long
            file.known["turn ends"] = _turn_ends(file)
        ends += [token for token in file.known["turn ends"] if token not in ends]
    return ends


def _turn_ends(file: GGUFFile) -> list[int]:
    """Control tokens with the spelling of an end-of-turn token."""
    texts = file.read_list("tokenizer.ggml.tokens", str, [])
    types = file.read_list("tokenizer.ggml.token_type", int, [])
    named = [i for i, text in enumerate(texts[: len(types)]) if text in TURN_ENDS]
    return [i for i in named if types[i] == CONTROL]


def one_value(file: GGUFFile, key: str) -> Any:
    """A number; from a list with one for each layer, the value that all layers have."""
    value = file.metadata[key]
    if not isinstance(value, Array) or value.count > 1024:
        return value
    values = value.read()
    return values[0] if values and len(set(values)) == 1 else values


def _refuse_others(file: GGUFFile, arch: str, scale: float) -> None:
    """Raises ValueError for an entry that says more than is computed, and for one that llama.cpp
    does without neither. `scale` is that of attention's scores."""
    if (eps := f"{arch}.attention.layer_norm_rms_epsilon") not in file.metadata:
        raise ValueError(f"{file.path}: {eps} is missing; convert the model anew")
    for key, why in REFUSED.get(arch, {}).items():
        if value := file.metadata.get(f"{arch}.{key}"):
            raise ValueError(f"{file.path}: {arch}.{key} is {show(value)}; {why}")
    in_float32: float = struct.unpack("<f", struct.pack("<f", scale))[0]
    neutral = {**NEUTRAL, "attention.scale": (0.0, scale, in_float32)}
    for key in sorted(neutral.keys() - OWN_ENTRIES.get(arch, {}).keys()):
        value = file.metadata.get(f"{arch}.{key}", neutral[key][0])
        if value not in neutral[key]:
            raise ValueError(
                f"{file.path}: {arch}.{key} is {show(value)}; {arch} is computed here as for "
                f"{neutral[key][-1]}, and would answer wrongly; this model cannot be served here"
            )
    keys, values = (f"{arch}.attention.{name}_length" for name in ("key", "value"))
    size = file.metadata.get(keys)
    if file.metadata.get(values, size) != size:
        raise ValueError(
            f"{file.path}: {values} is {show(file.metadata[values])}; it must be that of {keys}, "
            f"{show(size)}"
        )


def _vocab_size(file: GGUFFile) -> int:
    """The number of rows of the embedding, which may be larger than the number of tokens."""
    if "token_embd.weight" not in file.tensors:
        raise ValueError(f"{file.path} has no tensor 'token_embd.weight'; is it a language model?")
    return file.tensors["token_embd.weight"].shape[0]


def _dtype(file: GGUFFile) -> str:
    """The dtype of the matrices; for quantised blocks bfloat16, the usual dtype of training."""
    types = {tensor.type.name for tensor in file.tensors.values() if len(tensor.shape) > 1}
    if types - set(FLOATS) or "BF16" in types:
        return "bfloat16"
    return "float16" if "F16" in types else "float32"


# ---------------------------------------------------------------- rotation
def _rope(file: GGUFFile, arch: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """`rope_scaling`, and `partial_rotary_factor` if only a part of a head is rotated."""
    entries: dict[str, Any] = {}
    turning = _number(file, f"{arch}.rope.dimension_count", config["head_dim"])
    if turning < config["head_dim"]:
        entries["partial_rotary_factor"] = turning / config["head_dim"]
    most = config.get("max_position_embeddings", 2048)
    original = _number(file, f"{arch}.rope.scaling.original_context_length", most)
    llama3, phi = _factors(file, "rope_freqs"), _factors(file, "rope_factors_short")
    kind = file.get(f"{arch}.rope.scaling.type", str, "a text", "linear")
    former = _number(file, f"{arch}.rope.scale_linear", 1.0)  # the factor's name in older files
    factor = _number(file, f"{arch}.rope.scaling.factor", former) or 1.0
    sharper = _number(file, f"{arch}.rope.scaling.attn_factor", None)
    if llama3:  # the factors that Llama 3's formula gives for each pair of features
        scaling = {"rope_type": "longrope", "short_factor": llama3, "attention_factor": 1.0}
        entries["rope_scaling"] = scaling
    elif phi:
        entries["original_max_position_embeddings"] = original
        scaling = {"rope_type": "longrope", "short_factor": phi, "attention_factor": sharper}
        entries["rope_scaling"] = scaling
    elif kind == "linear" and factor != 1:
        entries["rope_scaling"] = {"rope_type": "linear", "factor": factor}
    elif kind == "yarn" and factor != 1:
        entries["rope_scaling"] = {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original,
            "attention_factor": (sharper or 1.0) * (1 + 0.1 * math.log(max(factor, 1.0))),
            "beta_fast": _number(file, f"{arch}.rope.scaling.yarn_beta_fast", 32.0),
            "beta_slow": _number(file, f"{arch}.rope.scaling.yarn_beta_slow", 1.0),
        }
    elif kind not in ("none", "linear", "yarn"):
        raise ValueError(
            f"{file.path}: {arch}.rope.scaling.type is {show(kind)}; it must be 'none', 'linear' "
            "or 'yarn', or the file must have the tensor 'rope_factors_short.weight'"
        )
    return entries


def _number(file: GGUFFile, key: str, default: Any) -> Any:
    return file.get(key, (int, float), "a number", default)


def _factors(file: GGUFFile, name: str) -> list[float] | None:
    """The numbers of the tensor `NAME.weight`, one for each pair of features; None without it."""
    tensor = file.tensors.get(f"{name}.weight")
    if tensor is None:
        return None
    if tensor.type.name != "F32" or len(tensor.shape) != 1:
        raise ValueError(
            f"{file.path}: tensor {tensor.name!r} is {tensor.type.name} of shape {tensor.shape}; "
            "it must be F32 with one number for each rotated pair of features"
        )
    with file.path.open("rb") as stream:
        stream.seek(tensor.begin)
        return list(struct.unpack(f"<{tensor.shape[0]}f", stream.read(tensor.num_bytes)))
