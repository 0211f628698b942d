"""Layers that keep the quantised blocks of a GGUF file: 4 or 8 bits a weight, in groups of 32.

    Q4_0   d | 32 x 4 bits            weight = (q - 8) * d
    Q4_1   d | m | 32 x 4 bits        weight = q * d + m
    Q8_0   d | 32 x 8 bits, signed    weight = q * d

d and m are float16. In a byte with two weights, the lower bits are weight i and the upper bits
weight i + 16. All three are stored as `q * scale + shift`, without rounding again. On a CPU, except
in float32, a product of `cpu.cpp` reads them directly. Otherwise the weight is dequantised in
float32 for each product, which is exact.

Source: vllm/model_executor/layers/quantization/gguf.py#L429-L558 (GGUFLinearMethod) @ v0.22.1.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mini_vllm.gguf import TYPES
from mini_vllm.kernels import native
from mini_vllm.model.gguf.tensors import BITS, BLOCKS, GROUP, split_blocks
from mini_vllm.model.layers import Linear
from mini_vllm.platforms import platform_of
from mini_vllm.quantization import cpu_products
from mini_vllm.quantization.packing import pack_int32, unpack_int32
from mini_vllm.quantization.wna16 import register


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
        blocks = torch.empty(shape, dtype=torch.uint8)
        register(layer, BLOCKS, blocks, out_dim=0, in_dim=1, in_pack=GROUP)

    def process_weights_after_loading(self, layer: Linear) -> None:
        blocks = layer._parameters.pop(BLOCKS).data
        rows, columns = len(blocks), blocks.shape[1] * GROUP
        is_host = platform_of(blocks.device).is_host
        is_known = is_host and native.can_multiply_groups(rows, columns, GROUP)
        if is_known and self.dtype != torch.float32:
            self._pack(layer, blocks)
            return
        q, scale, shift = split_blocks(blocks, self.type_name)
        _check_finite(layer, scale)
        _check_finite(layer, shift)
        layer.words = pack_int32(q, 4, 1) if self.bits == 4 else q
        layer.scale, layer.shift = scale.contiguous(), shift.contiguous()

    def _pack(self, layer: Linear, blocks: Tensor) -> None:
        """Convert the blocks `[N, G, bytes]` into the layout of `cpu.cpp`, in the same memory."""
        layer.words, floats = native.pack_blocks(blocks, self.bits)
        _check_finite(layer, floats)
        layer.scale, layer.shift = (*floats, None)[:2]
        layer.middle = 8 if self.type_name == "Q4_0" else 0
        own = layer.words, layer.scale, layer.shift, layer.middle
        layer.matrix = cpu_products.matrix_of(*own)

    def apply(self, layer: Linear, x: Tensor, bias: Tensor | None) -> Tensor:
        if layer.matrix is not None:
            return cpu_products.groups_linear(layer, x, bias)
        return F.linear(x, self.weight(layer).to(x.dtype), bias)

    def weight(self, layer: Linear) -> Tensor:
        """The dequantised float32 weight, `[N, K]`."""
        q = layer.words if self.bits == 8 else unpack_int32(layer.words, 4, 1, layer.input_size)
        groups = q.float().unflatten(1, (-1, GROUP))
        scale, shift = (numbers.float()[..., None] for numbers in (layer.scale, layer.shift))
        return (groups * scale + shift).flatten(1)


def _check_finite(layer: Linear, floats: Tensor) -> None:
    if not torch.isfinite(floats).all():
        raise ValueError(
            f"{layer.prefix!r} has a block whose scale is not finite; is the file whole?"
        )


class BlockEmbedding(nn.Module):
    """An embedding that reads its rows from the quantised blocks of `head`.

    So the weight of both is in memory once, and as small as in the file.
    """

    is_whole = True

    def __init__(self, head: Linear) -> None:
        super().__init__()
        self.layers = (head,)  # in a tuple, so that it is not a submodule of this module
        self.dtype = torch.get_default_dtype()

    @property
    def weight(self) -> Tensor:
        """All rows `[vocab, hidden]`, dequantised at each access."""
        return cpu_products.groups_weight(self.layers[0]).to(self.dtype)

    def forward(self, input_ids: Tensor) -> Tensor:
        return cpu_products.group_rows(self.layers[0], input_ids).to(self.dtype)
