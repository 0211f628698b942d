"""Write a folder in compressed-tensors format, which vLLM, transformers and this engine read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from mini_vllm.json_files import read_json
from mini_vllm.quantization.packing import pack_int32

NOT_COPIED = ("*.safetensors", "*.index.json", "*.bin", "*.pt", "*.pth", "training_report.json")
"""Weights of the original in any format, and its training report."""


@dataclass(frozen=True)
class Preset:
    """A scheme of compressed-tensors: how weights and activations are quantised."""

    format: str
    kind: str  # "int" or "float"
    bits: int
    strategy: str  # "group", "channel" or "block"
    symmetric: bool = True
    group_size: int | None = None
    activations: bool = False

    def config(self, ignore: Sequence[str], act_order: bool) -> dict[str, Any]:
        """The checkpoint's `quantization_config`."""
        weights: dict[str, Any] = {
            "num_bits": self.bits,
            "type": self.kind,
            "symmetric": self.symmetric,
            "strategy": self.strategy,
            "group_size": self.group_size,
            "dynamic": False,
        }
        if self.strategy == "block":
            weights["block_structure"] = [128, 128]
        if act_order:
            weights["actorder"] = "group"
        inputs = {
            "num_bits": 8,
            "type": self.kind,
            "symmetric": True,
            "strategy": "token",
            "dynamic": True,
        }
        if self.strategy == "block":
            inputs |= {"strategy": "group", "group_size": 128}
        group = {
            "targets": ["Linear"],
            "weights": weights,
            "input_activations": inputs if self.activations else None,
            "output_activations": None,
            "format": self.format,
        }
        return {
            "quant_method": "compressed-tensors",
            "format": self.format,
            "quantization_status": "compressed",
            "config_groups": {"group_0": group},
            "ignore": list(ignore),
            "kv_cache_scheme": None,
        }


PRESETS = {
    "W4A16": Preset("pack-quantized", "int", 4, "group", group_size=128),
    "W4A16_ASYM": Preset("pack-quantized", "int", 4, "group", symmetric=False, group_size=128),
    "W8A16": Preset("pack-quantized", "int", 8, "channel"),
    "W8A8": Preset("int-quantized", "int", 8, "channel", activations=True),
    "FP8_DYNAMIC": Preset("float-quantized", "float", 8, "channel", activations=True),
    "FP8_BLOCK": Preset("float-quantized", "float", 8, "block", activations=True),
}


def packed_tensors(
    preset: Preset, stored: Tensor, scale: Tensor, zero: Tensor, group: Tensor | None
) -> dict[str, Tensor]:
    """The tensors of one projection in the pack-quantized format, by suffix."""
    tensors = {
        "weight_packed": pack_int32(stored, preset.bits, 1),
        "weight_scale": scale,
        "weight_shape": torch.tensor(stored.shape, dtype=torch.int64),
    }
    if not preset.symmetric:
        tensors["weight_zero_point"] = pack_int32(zero, preset.bits, 0)
    if group is not None:
        tensors["weight_g_idx"] = group.to(torch.int32)
    return tensors


def write_folder(
    source: Path, target: Path, tensors: Mapping[str, Tensor], quantization: Mapping[str, Any]
) -> None:
    """`target` becomes a copy of `source` with other tensors and a `quantization_config`, if any.

    The copy is written beside it first and then renamed, so a folder `target` is always complete.
    After an error the partial copy is removed.

    Raises OSError if it cannot be written.
    """
    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        shutil.copytree(source, partial, ignore=shutil.ignore_patterns(*NOT_COPIED))
        config = read_json(source / "config.json")
        if quantization:
            config["quantization_config"] = dict(quantization)
        (partial / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(whole, partial / "model.safetensors", metadata={"format": "pt"})
        partial.rename(target)
    except SafetensorError as error:
        raise OSError(f"{str(target)!r} cannot be written: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
