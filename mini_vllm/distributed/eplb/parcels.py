"""A module as bytes that another rank makes the same module of.

This file is what `torch.save` calls a pickle module: its `Pickler` knows two things that pickle's
own does not. Tensors in oneDNN's order have no bytes to copy, so they travel in the plain order and
are packed again where they arrive. A `native.Matrix`, which holds addresses, says itself how it is
made of the tensors that travel with it.
"""

from __future__ import annotations

import io
import pickle
import sys
from typing import Any

import torch
from torch import Tensor, nn

from mini_vllm.model.layers import pack
from mini_vllm.quantization.cpu_products import pack_int8


class Pickler(pickle.Pickler):
    """Writes modules whose weights may be packed in oneDNN's order."""

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_mkldnn:
            return NotImplemented
        if value.dtype == torch.int8:  # it was turned when it was packed
            return pack_int8, (value.to_dense().t().contiguous(), "onednn")
        return pack, (value.to_dense(),)


def to_parcel(module: nn.Module, device: torch.device) -> Tensor:
    """The bytes of `module`, uint8 on `device`, from where they can be sent."""
    file = io.BytesIO()
    torch.save(module, file, pickle_module=sys.modules[__name__])
    return torch.frombuffer(file.getbuffer(), dtype=torch.uint8).to(device)


def from_parcel(parcel: Tensor, device: torch.device) -> nn.Module:
    """The module whose bytes these are, its tensors on `device`. Only ranks of one engine send
    parcels: pickled bytes can run code."""
    file = io.BytesIO(parcel.cpu().numpy().tobytes())
    module: nn.Module = torch.load(file, map_location=device, weights_only=False)
    return module
