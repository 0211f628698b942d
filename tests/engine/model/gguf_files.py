"""Small GGUF files, written with the `gguf` package as llama.cpp's converter would, and the models
that they mean.

A file is made from blocks; what they mean is what the package's own `dequantize` says. So the model
to compare with has exactly the numbers of the file, whatever was lost when they were rounded.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize, quantize
from torch import Tensor

from mini_vllm import bundled

HIDDEN, HEADS, KV_HEADS, INTERMEDIATE, LAYERS = 256, 4, 2, 512, 2
SHAPE: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "vocab_size": 2048,
    "max_position_embeddings": 128,
    "eos_token_id": 2,
    "bos_token_id": None,
    "pad_token_id": 0,
}
"""The vocabulary is that of the bundled model."""
OWN: dict[str, dict[str, Any]] = {
    "llama": {"rope_theta": 5000.0, "rms_norm_eps": 1e-5},
    "qwen2": {"rope_theta": 20000.0},
    "qwen3": {"head_dim": 128},
    "qwen3moe": {
        "head_dim": 128,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 256,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
    },
    "phi3": {"rms_norm_eps": 1e-5},
    "gemma3": {"num_hidden_layers": 7, "head_dim": 64, "sliding_window": 16},
    "olmo2": {"rope_theta": 50000.0},
}
CLASSES = {
    "llama": "Llama",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "qwen3moe": "Qwen3Moe",
    "phi3": "Phi3",
    "gemma3": "Gemma3",
    "olmo2": "Olmo2",
}
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.down_proj": "ffn_down_exps",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
FOUR_NORMS = ("gemma3", "olmo2")
SCALES_AT = {
    "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
    "IQ2_XXS": (0,), "IQ2_XS": (0,), "IQ2_S": (0,), "IQ3_XXS": (0,), "IQ3_S": (0,), "IQ1_S": (0,),
    "IQ4_NL": (0,), "IQ4_XS": (0,), "TQ1_0": (52,), "TQ2_0": (64,),
}  # fmt: skip
"""Bytes of a block at which its float16 scales lie, of types that the package cannot write."""


def random_blocks(weight: np.ndarray, kind: str, seed: int) -> np.ndarray:
    """Blocks for a tensor of this shape: random bytes, and scales such that weights stay small."""
    draw = np.random.default_rng(seed)
    weights, num_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    shape = (*weight.shape[:-1], weight.shape[-1] // weights, num_bytes)
    blocks = draw.integers(0, 256, shape, dtype=np.uint8)
    if kind == "MXFP4":
        blocks[..., 0] = draw.integers(120, 124, shape[:-1])
    for place in SCALES_AT.get(kind, ()):
        scales = draw.uniform(1e-4, 1e-3, shape[:-1]).astype("<f2")
        blocks[..., place : place + 2] = scales[..., None].view(np.uint8)
    if kind == "IQ1_M":  # its scale is in the upper four bits of four 16-bit numbers
        words = blocks[..., 48:56].copy().view("<u2")
        bits = draw.uniform(1e-3, 2e-3, shape[:-1]).astype("<f2").view("<u2")
        for index in range(4):
            words[..., index] = (words[..., index] & 0xFFF) | ((bits >> (4 * index) & 15) << 12)
        blocks[..., 48:56] = words.view(np.uint8)
    return blocks.reshape(*weight.shape[:-1], -1)


def to_blocks(weight: np.ndarray, kind: str, seed: int = 0) -> np.ndarray:
    """The bytes that hold `weight`, or random ones of its shape where only llama.cpp can round."""
    if kind in ("F32", "F16"):
        return weight.astype({"F32": "<f4", "F16": "<f2"}[kind])
    try:
        return quantize(weight, GGMLQuantizationType[kind])
    except NotImplementedError:
        return random_blocks(weight, kind, seed)


def turned(weight: Tensor, heads: int) -> Tensor:
    """Rows as llama.cpp's converter orders them for Llama: of each head, pairs side by side."""
    shape = weight.shape
    return weight.view(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def turned_back(weight: Tensor, heads: int) -> Tensor:
    shape = weight.shape
    return weight.view(heads, shape[0] // heads // 2, 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def make_model(arch: str, seed: int = 0, **own: Any) -> Any:
    """A random model of transformers, in float32."""
    import transformers

    name = CLASSES[arch]
    config_name = "Gemma3TextConfig" if arch == "gemma3" else f"{name}Config"
    config = getattr(transformers, config_name)(**(SHAPE | OWN[arch] | own))
    torch.manual_seed(seed)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.06)
        for key, parameter in model.named_parameters():
            if "norm" in key:
                parameter.add_(0.0 if arch == "gemma3" else 1.0)
    return model


def gguf_name(arch: str, name: str) -> str:
    """The name in the file of a parameter of transformers."""
    base, _, kind = name.rpartition(".")
    if kind not in ("weight", "bias"):
        base, kind = name, "weight"
    top = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    if base in top:
        return f"{top[base]}.{kind}"
    layer, _, rest = base.removeprefix("model.layers.").partition(".")
    word = NAMES[rest]
    if arch in FOUR_NORMS and rest == "post_attention_layernorm":
        word = "post_attention_norm"
    return f"blk.{layer}.{word}.{kind}"


def write_model(
    path: Path,
    arch: str,
    model: Any,
    kind: str | Callable[[str], str] = "F32",
    metadata: dict[str, Any] | None = None,
    leave_out: tuple[str, ...] = (),
    tokenizer: bool = True,
    extra: dict[str, np.ndarray] | None = None,
) -> Any:
    """Write `model` to `path`, and give it the numbers that are in the file.

    Args:
        kind: the type of all matrices, or a function of a tensor's name in the file.
        metadata: entries that count for more than the model's.
        leave_out: entries that are not written.
        extra: tensors that are no weights.
    """
    writer = GGUFWriter(path, arch)
    entries = shape_entries(arch, model.config) | (metadata or {})
    for key, value in entries.items():
        if key not in leave_out:
            _add(writer, key, value)
    for key, value in (tokenizer_entries() if tokenizer else {}).items():
        if key not in leave_out and key not in (metadata or {}):
            _add(writer, key, value)
    heads = {"attn_q": model.config.num_attention_heads, "attn_k": model.config.num_key_value_heads}
    is_tied = model.config.tie_word_embeddings
    with torch.no_grad():
        for seed, (name, parameter) in enumerate(model.state_dict().items()):
            if is_tied and name == "lm_head.weight":
                continue
            if name.endswith("experts.gate_up_proj"):
                prefix = f"blk.{name.split('.')[2]}.ffn"
                gate, up = parameter.chunk(2, 1)
                parts = {f"{prefix}_gate_exps.weight": gate, f"{prefix}_up_exps.weight": up}
            else:
                parts = {gguf_name(arch, name): parameter}
            for in_file, piece in parts.items():
                count = heads.get(in_file.split(".")[-2]) if arch == "llama" else None
                added = 1 if arch == "gemma3" and "norm" in in_file else 0
                there = (turned(piece, count) if count else piece) + added
                is_matrix = piece.dim() > 1 and "ffn_gate_inp" not in in_file
                wanted = kind if isinstance(kind, str) else kind(in_file)
                wanted = wanted if is_matrix else "F32"
                blocks = to_blocks(there.numpy(), wanted, seed)
                writer.add_tensor(in_file, blocks, raw_dtype=GGMLQuantizationType[wanted])
                raw = blocks if wanted in ("F32", "F16") else blocks.view(np.uint8)
                numbers = dequantize(raw, GGMLQuantizationType[wanted]).astype(np.float32)
                meant = torch.from_numpy(numbers).view(piece.shape) - added
                piece.copy_(turned_back(meant, count) if count else meant)
    for name, tensor in (extra or {}).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def shape_entries(arch: str, config: Any) -> dict[str, Any]:
    heads, head_dim = config.num_attention_heads, getattr(config, "head_dim", None)
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    entries = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.freq_base": float(rope["rope_theta"]),
        "rope.dimension_count": head_dim or config.hidden_size // heads,
    }
    if arch in ("qwen3", "qwen3moe", "gemma3"):
        entries |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    if arch == "gemma3":
        entries["attention.sliding_window"] = config.sliding_window
    if arch == "qwen3moe":
        entries |= {
            "expert_count": config.num_experts,
            "expert_used_count": config.num_experts_per_tok,
            "expert_feed_forward_length": config.moe_intermediate_size,
        }
    return {f"{arch}.{key}": value for key, value in entries.items()}


def tokenizer_entries() -> dict[str, Any]:
    """The bundled model's vocabulary, split as Qwen's."""
    folder = bundled.path("storyteller")
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocab = tokenizer["model"]["vocab"]
    tokens = sorted(vocab, key=vocab.__getitem__)
    special = {token["content"] for token in tokenizer["added_tokens"]}
    merges = tokenizer["model"]["merges"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in special else 1 for token in tokens],
        "tokenizer.ggml.merges": [m if isinstance(m, str) else " ".join(m) for m in merges],
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": (folder / "chat_template.jinja").read_text(encoding="utf-8"),
    }


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
