"""Adapters for tests: random tensors in PEFT's layout, written to a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from mini_vllm.lora.checkpoint import LoRATarget
from mini_vllm.model.layout import Part

# Projections of a layer of storyteller: (output size, input size).
SIZES = {
    "self_attn.q_proj": (256, 192),
    "self_attn.k_proj": (128, 192),
    "self_attn.v_proj": (128, 192),
    "self_attn.o_proj": (192, 256),
    "mlp.gate_proj": (576, 192),
    "mlp.up_proj": (576, 192),
    "mlp.down_proj": (192, 576),
}
STACKED = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
ALL = tuple(SIZES)


def random_tensors(
    seed: int,
    rank: int | Mapping[str, int] = 8,
    projections: tuple[str, ...] = ALL,
    layers: int = 4,
    size: float = 0.1,
) -> dict[str, Tensor]:
    """A and B for some projections of storyteller, under PEFT's names; rank by projection."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(layers):
        for name in projections:
            r = rank if isinstance(rank, int) else rank[name]
            out_size, in_size = SIZES[name]
            module = f"base_model.model.model.layers.{layer}.{name}"
            for part, shape in (("A", (r, in_size)), ("B", (out_size, r))):
                values = torch.randn(shape, generator=generator) * size
                tensors[f"{module}.lora_{part}.weight"] = values
    return tensors


def write_adapter(
    folder: Path, tensors: Mapping[str, Tensor], weights: bytes | None = None, **config: Any
) -> str:
    """Write an adapter's folder; returns it as text."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(settings | config))
    save_file(dict(tensors), folder / "adapter_model.safetensors")
    if weights is not None:
        (folder / "adapter_model.safetensors").write_bytes(weights)
    return str(folder)


def make_targets() -> dict[str, LoRATarget]:
    """Where storyteller keeps its projections."""
    targets = {}
    for layer in range(4):
        for name, (out_size, in_size) in SIZES.items():
            block, _, last = name.partition(".")
            stack = next((s for s, parts in STACKED.items() if last in parts), last)
            parts = STACKED.get(stack, [last])
            part = Part(slice(0, out_size), slice(0, in_size))
            targets[f"model.layers.{layer}.{name}"] = LoRATarget(
                f"model.layers.{layer}.{block}.{stack}", parts.index(last), len(parts), part, part
            )
    return targets
