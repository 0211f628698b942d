"""From the metadata of a GGUF file to the entries of a `config.json`.

    llama.embedding_length 576                   ->  "hidden_size": 576
    tokenizer.ggml.eos_token_id 2                ->  "eos_token_id": [2]
    no tensor output.weight                      ->  "tie_word_embeddings": true
    tensor rope_freqs.weight                     ->  "rope_scaling": {"short_factor": [...], ...}

What the file leaves out is what llama.cpp then assumes, which is what the models' authors wrote.
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
"""What `general.architecture` may be, and which of our classes that is."""

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
"""Behind `general.architecture` and a dot, and as a `config.json` calls it."""
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
"""What no file says, for all models of an architecture have it so."""
REFUSED = {
    "llama": {"expert_count": "experts are supported in qwen3moe only"},
    "qwen3moe": {"expert_shared_count": "experts that all tokens share are not supported"},
    "olmo2": {"attention.sliding_window": "OLMo 3 is not supported; OLMo 2 has no window"},
}
"""Entries that mean another model than ours if they are there and not 0."""
GEMMA3_27B_LAYERS = 62
"""The one Gemma 3 that divides scores by another root than that of 256."""

SAMPLING = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}
"""What the authors recommend, and as a `generation_config.json` calls it."""
ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
"""Behind `tokenizer.ggml.`: tokens that end an answer, a turn and a message."""
TURN_ENDS = frozenset(("<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<|end|>"))
"""How the end of a turn is spelled. Many files name the end of a text, and none of a turn."""
CONTROL = 3
"""What `tokenizer.ggml.token_type` says of a token that is no text."""


def read_config(path: str | Path) -> dict[str, Any]:
    """The `config.json` that a GGUF file would have as a folder.

    Raises ValueError that names the file, the key, its value and what is allowed.
    """
    file = read_gguf(path)
    arch = architecture(file)
    entries = ENTRIES | OWN_ENTRIES.get(arch, {})
    names = {f"{arch}.{key}": ours for key, ours in entries.items()}
    found = {key: _one_value(file, key) for key in names if key in file.metadata}
    if not found.get(f"{arch}.attention.sliding_window", True):
        del found[f"{arch}.attention.sliding_window"]  # 0: none
    check_entries(found, {key: CONFIG[ours] for key, ours in names.items()}, str(path))
    _refuse_others(file, arch)
    config = CONSTANTS.get(arch, {}) | {names[key]: value for key, value in found.items()}
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    if arch == "gemma3" and layers == GEMMA3_27B_LAYERS:
        config["query_pre_attn_scalar"] = config["hidden_size"] / heads
    config.setdefault("head_dim", config["hidden_size"] // heads)
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
    """The `generation_config.json` that the file would have: what its authors recommend."""
    metadata = read_gguf(path).metadata
    return {ours: metadata[key] for key, ours in SAMPLING.items() if key in metadata}


def architecture(file: GGUFFile) -> str:
    """Raises ValueError for one that is not ours; it lists those that are."""
    arch = file.metadata.get("general.architecture")
    rule = one_of(*ARCHITECTURES)
    if not rule.legal(arch):
        found = "missing" if arch is None else show(arch)
        raise ValueError(f"{file.path}: general.architecture is {found}; {rule.says}")
    return str(arch)


def end_tokens(file: GGUFFile) -> list[int]:
    """Tokens that end an answer. Raises ValueError for an id that is none.

    The end of a turn is known by its spelling in a file that does not name it, as in llama.cpp.
    """
    ids = {key: file.metadata.get(f"tokenizer.ggml.{key}") for key in ENDS}
    rules = dict.fromkeys(ids, GENERATION_CONFIG["eos_token_id"])
    check_entries(ids, rules, str(file.path), "tokenizer.ggml.")
    ends = [token for token in ids.values() if token is not None]
    if ids["eot_token_id"] is None:
        if "turn ends" not in file.known:  # a vocabulary takes long to read, and many ask
            file.known["turn ends"] = _turn_ends(file)
        ends += [token for token in file.known["turn ends"] if token not in ends]
    return ends


def _turn_ends(file: GGUFFile) -> list[int]:
    """Control tokens that are spelled as the end of a turn."""
    texts = file.read_list("tokenizer.ggml.tokens", str, [])
    types = file.read_list("tokenizer.ggml.token_type", int, [])
    named = [i for i, text in enumerate(texts[: len(types)]) if text in TURN_ENDS]
    return [i for i in named if types[i] == CONTROL]


def _one_value(file: GGUFFile, key: str) -> Any:
    """A number; of a list with one for each layer the one that all have."""
    value = file.metadata[key]
    if not isinstance(value, Array) or value.count > 1024:
        return value
    values = value.read()
    return values[0] if values and len(set(values)) == 1 else values


def _refuse_others(file: GGUFFile, arch: str) -> None:
    for key, why in REFUSED.get(arch, {}).items():
        if value := file.metadata.get(f"{arch}.{key}"):
            raise ValueError(f"{file.path}: {arch}.{key} is {show(value)}; {why}")
    keys, values = (f"{arch}.attention.{name}_length" for name in ("key", "value"))
    size = file.metadata.get(keys)
    if file.metadata.get(values, size) != size:
        raise ValueError(
            f"{file.path}: {values} is {show(file.metadata[values])}; it must be that of {keys}, "
            f"{show(size)}"
        )


def _vocab_size(file: GGUFFile) -> int:
    """Rows of the embedding, of which there may be more than tokens."""
    if "token_embd.weight" not in file.tensors:
        raise ValueError(f"{file.path} has no tensor 'token_embd.weight'; is it a language model?")
    return file.tensors["token_embd.weight"].shape[0]


def _dtype(file: GGUFFile) -> str:
    """That of the matrices. For blocks bfloat16, in which the models were trained."""
    types = {tensor.type.name for tensor in file.tensors.values() if len(tensor.shape) > 1}
    if types - set(FLOATS) or "BF16" in types:
        return "bfloat16"
    return "float16" if "F16" in types else "float32"


# ---------------------------------------------------------------- rotation
def _rope(file: GGUFFile, arch: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """`rope_scaling`, and how much of a head turns."""
    entries: dict[str, Any] = {}
    turning = _number(file, f"{arch}.rope.dimension_count", config["head_dim"])
    if turning < config["head_dim"]:
        entries["partial_rotary_factor"] = turning / config["head_dim"]
    most = config.get("max_position_embeddings", 2048)
    original = _number(file, f"{arch}.rope.scaling.original_context_length", most)
    llama3, phi = _factors(file, "rope_freqs"), _factors(file, "rope_factors_short")
    kind = file.get(f"{arch}.rope.scaling.type", str, "a text", "linear")
    former = _number(file, f"{arch}.rope.scale_linear", 1.0)  # its name in older files
    factor = _number(file, f"{arch}.rope.scaling.factor", former) or 1.0
    sharper = _number(file, f"{arch}.rope.scaling.attn_factor", None)
    if llama3:  # they are what its formula gives for each pair of features
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
            "it must be F32 with one number for each pair of features that turns"
        )
    with file.path.open("rb") as stream:
        stream.seek(tensor.begin)
        return list(struct.unpack(f"<{tensor.shape[0]}f", stream.read(tensor.num_bytes)))
