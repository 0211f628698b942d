"""Checkpoints in every format, written by numpy, with the float32 weights that they mean."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from mini_vllm.model.build import load_model
from mini_vllm.model.loader import weight_targets

AWQ = [0, 2, 4, 6, 1, 3, 5, 7]
CONFIG: dict[str, Any] = dict(
    architectures=["Qwen2ForCausalLM"],
    vocab_size=48,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=64,
    tie_word_embeddings=False,
    dtype="float32",
)


def pack(stored: np.ndarray, bits: int, order: list[int] | None = None) -> Tensor:
    """Along the last dimension, with a loop."""
    per_word = 32 // bits
    padded = np.pad(stored, [(0, 0)] * (stored.ndim - 1) + [(0, -stored.shape[-1] % per_word)])
    words = np.zeros((*padded.shape[:-1], padded.shape[-1] // per_word), np.uint32)
    for place in range(per_word):
        column = order[place] if order else place
        words |= padded[..., column::per_word].astype(np.uint32) << np.uint32(bits * place)
    return torch.from_numpy(words.view(np.int32).copy())


@dataclass
class Packed:
    """One projection `[N, K]`: its random numbers, and the weight that they mean."""

    rows: int
    columns: int
    bits: int
    group: int  # columns a group
    symmetric: bool
    order: np.ndarray | None = None  # g_idx
    seed: int = 0
    stored: np.ndarray = field(init=False)
    scale: np.ndarray = field(init=False)
    zero: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        draw = np.random.default_rng(self.seed)
        groups = self.columns // self.group
        self.stored = draw.integers(0, 2**self.bits, (self.rows, self.columns))
        self.scale = draw.uniform(0.5, 2, (self.rows, groups)).astype(np.float16).astype(np.float32)
        self.scale *= 0.25 / 2**self.bits
        middle = 2 ** (self.bits - 1)
        self.zero = draw.integers(1, 2**self.bits, (self.rows, groups))
        if self.symmetric:
            self.zero[:] = middle

    @property
    def weight(self) -> Tensor:
        group = np.arange(self.columns) // self.group if self.order is None else self.order
        exact = (self.stored - self.zero[:, group]) * self.scale[:, group]
        return torch.from_numpy(exact.astype(np.float32))


def compressed_tensors(p: Packed) -> dict[str, Tensor]:
    tensors = {
        "weight_packed": pack(p.stored, p.bits),
        "weight_scale": torch.from_numpy(p.scale),
        "weight_shape": torch.tensor([p.rows, p.columns]),
    }
    if not p.symmetric:
        tensors["weight_zero_point"] = pack(p.zero.T, p.bits).T.contiguous()
    if p.order is not None:
        tensors["weight_g_idx"] = torch.from_numpy(p.order.astype(np.int32))
    return tensors


def gptq(p: Packed, offset: int = 1) -> dict[str, Tensor]:
    order = np.arange(p.columns) // p.group if p.order is None else p.order
    return {
        "qweight": pack(p.stored.T.T, p.bits).T.contiguous(),
        "scales": torch.from_numpy(p.scale.T.copy()),
        "qzeros": pack((p.zero.T - offset) % 2**p.bits, p.bits),
        "g_idx": torch.from_numpy(order.astype(np.int32)),
    }


def awq(p: Packed) -> dict[str, Tensor]:
    return {
        "qweight": pack(p.stored.T, 4, AWQ),
        "qzeros": pack(p.zero.T, 4, AWQ),
        "scales": torch.from_numpy(p.scale.T.copy()),
    }


def ct_config(bits: int, group: int, symmetric: bool, **weights: Any) -> dict[str, Any]:
    strategy = {"strategy": "group", "group_size": group} if group > 0 else {"strategy": "channel"}
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, **strategy, **weights}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    }


def write(
    folder: Path,
    quantization: dict[str, Any],
    make: Callable[[str, int, int, int], tuple[dict[str, Tensor], Tensor]],
    more: dict[str, Tensor] | None = None,
    changes: dict[str, Any] | None = None,
) -> Path:
    """A quantised checkpoint in `folder`, and beside it, in `folder/plain`, what it means.

    `make(name, rows, columns, seed)` gives a projection's tensors by suffix, and its weight.
    """
    plain = folder / "plain"
    plain.mkdir()
    config = {**CONFIG, **(changes or {})}
    (plain / "config.json").write_text(json.dumps(config))
    quantised = {**config, "quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(quantised))
    torch.manual_seed(3)
    tensors, meant = dict(more or {}), {}
    targets = weight_targets(load_model(plain, load_format="dummy"))
    for seed, (name, view) in enumerate(targets.items()):
        if name.endswith("_proj.weight"):
            base = name.removesuffix(".weight")
            made, meant[name] = make(base, *view.shape, seed)
            tensors |= {f"{base}.{suffix}": tensor for suffix, tensor in made.items()}
        else:
            meant[name] = tensors[name] = torch.randn(view.shape) * 0.3
    save_file(meant, plain / "model.safetensors")
    save_file(tensors, folder / "model.safetensors")
    return folder
