"""Blocks of a GGUF file that stay as they are: 4 or 8 bits a weight, in groups of 32.

    Q4_0   d | 32 x 4 bits            weight = (q - 8) * d
    Q4_1   d | m | 32 x 4 bits        weight = q * d + m
    Q8_0   d | 32 x 8 bits, signed    weight = q * d

d and m are float16. Of two weights in a byte the lower bits are weight i, the upper weight i + 16.
All three are `q * scale + shift`, and so they are kept: no number is rounded again. What then
multiplies is torch's or our own int4 product (a CPU, not in float32), whose scales are bfloat16; or
the weight is made for each product, in float32, and every bit is that of the file.

Source: vllm/model_executor/layers/quantization/gguf.py#L429-L558 (GGUFLinearMethod) @ v0.22.1.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mini_vllm.gguf import TYPES
from mini_vllm.model.gguf.tensors import BLOCKS
from mini_vllm.model.layers import Linear
from mini_vllm.quantization import cpu_products
from mini_vllm.quantization.packing import pack_int32, unpack_int32
from mini_vllm.quantization.wna16 import register

BITS = {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8}
"""Types whose blocks can be kept; others are turned into floats while they are loaded."""
GROUP = 32


def split_blocks(blocks: Tensor, type_name: str) -> tuple[Tensor, Tensor, Tensor]:
    """q, scale and shift of blocks `[N, G, bytes]` uint8 of a type in `BITS`.

    Returns:
        q `[N, K]`, int32 of 0 .. 15 or int8; scale and shift `[N, G]` float16.
    """
    num_floats = 2 if type_name == "Q4_1" else 1  # d, or d and m
    head, data = blocks.split([2 * num_floats, blocks.shape[-1] - 2 * num_floats], dim=-1)
    floats = head.contiguous().view(torch.float16)
    scale = floats[..., 0]
    shift = floats[..., 1] if type_name == "Q4_1" else scale * -8
    if BITS[type_name] == 8:
        return data.contiguous().view(torch.int8).flatten(1), scale, torch.zeros_like(scale)
    return torch.cat((data & 15, data >> 4), -1).flatten(1).int(), scale, shift


class GGUFLinearMethod:
    """The `LinearMethod` of a layer whose projections all have blocks of one type in `BITS`."""

    def __init__(self, type_name: str) -> None:
        self.type_name, self.bits = type_name, BITS[type_name]

    def create_weights(self, layer: Linear) -> None:
        self.dtype = torch.get_default_dtype()
        kind = next(kind for kind in TYPES.values() if kind.name == self.type_name)
        if layer.input_size % GROUP:
            raise ValueError(
                f"{layer.prefix!r} has {layer.input_size} columns here; blocks of {self.type_name} "
                f"need a multiple of {GROUP}; choose a smaller tensor_parallel_size, or leave "
                "quantization out"
            )
        shape = (sum(layer.output_sizes), layer.input_size // GROUP, kind.num_bytes)
        blocks = torch.zeros(shape, dtype=torch.uint8)
        register(layer, BLOCKS, blocks, out_dim=0, in_dim=1, in_pack=GROUP)

    def process_weights_after_loading(self, layer: Linear) -> None:
        q, scale, shift = split_blocks(layer._parameters.pop(BLOCKS).data, self.type_name)
        if not (torch.isfinite(scale) & torch.isfinite(shift)).all():
            raise ValueError(
                f"{layer.prefix!r} has a block whose scale is not finite; is the file whole?"
            )
        layer.form = self._cpu_form(q)
        if layer.form is not None:
            layer.words = cpu_products.pack_int4(q, layer.form)
            middle = shift.float() + 8 * scale.float()
            layer.scale = cpu_products.int4_pairs(scale.float(), middle)
        else:
            layer.words = pack_int32(q, 4, 1) if self.bits == 4 else q
            layer.scale, layer.shift = scale.contiguous(), shift.contiguous()

    def _cpu_form(self, q: Tensor) -> cpu_products.Int4Form | None:
        """The form for an int4 product, or None if there is none for this weight."""
        is_wanted = self.bits == 4 and self.dtype != torch.float32 and q.device.type == "cpu"
        return cpu_products.int4_form() if is_wanted and len(q) % 64 == 0 else None

    def apply(self, layer: Linear, x: Tensor, bias: Tensor | None) -> Tensor:
        if layer.form is not None:
            y = cpu_products.int4_linear(x, layer.words, layer.form, GROUP, layer.scale)
            return y if bias is None else y.add_(bias)
        return F.linear(x, self.weight(layer).to(x.dtype), bias)

    def weight(self, layer: Linear) -> Tensor:
        """The float32 weight that the blocks mean, `[N, K]`."""
        q = layer.words if self.bits == 8 else unpack_int32(layer.words, 4, 1, layer.input_size)
        groups = q.float().unflatten(1, (-1, GROUP))
        scale, shift = (numbers.float()[..., None] for numbers in (layer.scale, layer.shift))
        return (groups * scale + shift).flatten(1)
