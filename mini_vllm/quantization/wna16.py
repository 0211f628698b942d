"""Weights of 4 or 8 bits in groups, activations as they are (W4A16, W8A16).

Three formats of checkpoints are unpacked into one form of ours:

    compressed-tensors   weight_packed [N, K / 8], packed along K      zero points packed along N
    GPTQ                 qweight [K / 8, N], packed along K            zero - 1, unless gptq_v2
    AWQ                  qweight [K, N / 8], packed along N, shuffled  zero as it is

    ours                 stored [N, K], scale [N, G], zero [N, G], perhaps an order of the columns

In memory the weight is then either in the layout of `cpu.cpp` (on a CPU, except in float32), or in
32-bit words in the order of compressed-tensors. These are unpacked for each product (exact in
float32) or read by a Triton kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mini_vllm.kernels import can_launch
from mini_vllm.kernels.quantization import w4a16_product
from mini_vllm.model.layers import Linear
from mini_vllm.model.layout import ParamSpec
from mini_vllm.quantization import cpu_products
from mini_vllm.quantization.packing import (
    dequantize,
    num_groups,
    pack_int32,
    unpack_awq,
    unpack_gptq_zeros,
    unpack_int32,
)

Format = Literal["compressed-tensors", "gptq", "gptq_v2", "awq"]


def register(layer: nn.Module, name: str, value: Tensor, **spec: Any) -> None:
    """Give `layer` a parameter without gradient that a checkpoint fills."""
    setattr(layer, name, nn.Parameter(value, requires_grad=False))
    getattr(layer, name).spec = ParamSpec(**spec)


@dataclass(frozen=True)
class Scheme:
    """How the weights of a checkpoint are packed.

    Args:
        bits: 4 or 8.
        group_size: columns that share a scale; -1: a whole row.
        symmetric: zero is 2^(bits-1) everywhere; zero points in the file are ignored.
        act_order: `g_idx` has the group of each column.
    """

    format: Format
    bits: int
    group_size: int
    symmetric: bool
    act_order: bool = False


_NO_SHARES = (
    "{!r} has its columns in groups by g_idx (act_order): a share of them has no whole groups; use "
    "tensor_parallel_size=1"
)


class WNA16LinearMethod:
    """The `LinearMethod` of one layer whose weights are packed.

    Source: vllm/model_executor/layers/quantization/compressed_tensors/schemes/compressed_tensors_wNa16.py#L40-L228
    (CompressedTensorsWNA16) @ v0.22.1.
    """  # noqa: E501

    def __init__(self, scheme: Scheme) -> None:
        self.scheme = scheme

    # ------------------------------------------------------------ parameters
    def create_weights(self, layer: Linear) -> None:
        scheme = self.scheme
        self.dtype = torch.get_default_dtype()
        groups = self._num_groups(layer)
        if scheme.act_order and layer.parts[0].in_ != layer.whole_parts[0].in_:
            raise ValueError(_NO_SHARES.format(layer.prefix))
        if scheme.act_order or scheme.format.startswith("gptq"):
            name = "weight_g_idx" if scheme.format == "compressed-tensors" else "g_idx"
            in_order = torch.arange(layer.input_size, dtype=torch.int32) // (
                layer.input_size // groups
            )
            spec = dict(out_dim=None, in_dim=0, per_part=True, optional=not scheme.act_order)
            register(layer, name, in_order.repeat(len(layer.parts), 1), **spec)
        create = {
            "compressed-tensors": self._create_compressed_tensors,
            "gptq": self._create_gptq,
            "gptq_v2": self._create_gptq,
            "awq": self._create_awq,
        }
        create[scheme.format](layer, sum(layer.output_sizes), layer.input_size, groups)

    def _num_groups(self, layer: Linear) -> int:
        try:
            return num_groups(layer.input_size, self.scheme.group_size)
        except ValueError as error:
            raise ValueError(f"{layer.prefix!r}: {error}") from error

    def _pack(self, layer: Linear, size: int, what: str) -> int:
        """Numbers in a word. Raises ValueError unless `size` of them fill whole words."""
        per_word = 32 // self.scheme.bits
        if size % per_word:
            raise ValueError(
                f"{layer.prefix!r} has {size} {what}, of which {per_word} share a word; "
                f"{self.scheme.format} with {self.scheme.bits} bits needs a multiple of {per_word}"
            )
        return per_word

    def _create_compressed_tensors(self, layer: Linear, rows: int, columns: int, g: int) -> None:
        per_word = 32 // self.scheme.bits
        words = torch.zeros(rows, -(-columns // per_word), dtype=torch.int32)
        register(layer, "weight_packed", words, out_dim=0, in_dim=1, in_pack=per_word)
        by_group = self._by_group(out_dim=0, in_dim=1)
        register(layer, "weight_scale", torch.zeros(rows, g, dtype=torch.float32), **by_group)
        if not self.scheme.symmetric:
            for size in layer.output_sizes:
                self._pack(layer, size, "outputs")
            zeros = torch.zeros(rows // per_word, g, dtype=torch.int32)
            register(layer, "weight_zero_point", zeros, out_pack=per_word, **by_group)
        shape = torch.zeros(len(layer.parts), 2, dtype=torch.int64)
        register(layer, "weight_shape", shape, out_dim=None, per_part=True, optional=True)

    def _create_gptq(self, layer: Linear, rows: int, columns: int, g: int) -> None:
        per_word = self._pack(layer, columns, "inputs")
        for size in layer.output_sizes:
            self._pack(layer, size, "outputs")
        words = torch.zeros(columns // per_word, rows, dtype=torch.int32)
        register(layer, "qweight", words, out_dim=1, in_dim=0, in_pack=per_word)
        by_group = self._by_group(out_dim=1, in_dim=0)
        register(layer, "scales", torch.zeros(g, rows, dtype=torch.float32), **by_group)
        zeros = torch.zeros(g, rows // per_word, dtype=torch.int32)
        optional = self.scheme.symmetric
        register(layer, "qzeros", zeros, out_pack=per_word, optional=optional, **by_group)

    def _create_awq(self, layer: Linear, rows: int, columns: int, g: int) -> None:
        for size in layer.output_sizes:
            self._pack(layer, size, "outputs")
        words = torch.zeros(columns, rows // 8, dtype=torch.int32)
        register(layer, "qweight", words, out_dim=1, in_dim=0, out_pack=8)
        by_group = self._by_group(out_dim=1, in_dim=0)
        register(layer, "scales", torch.zeros(g, rows, dtype=torch.float32), **by_group)
        zeros = torch.zeros(g, rows // 8, dtype=torch.int32)
        register(layer, "qzeros", zeros, out_pack=8, **by_group)

    def _by_group(self, out_dim: int, in_dim: int) -> dict[str, Any]:
        """The spec of scales by group; one scale a row does not depend on the columns."""
        if self.scheme.group_size == -1:
            return dict(out_dim=out_dim)
        return dict(out_dim=out_dim, in_dim=in_dim, in_pack=self.scheme.group_size)

    # ------------------------------------------------------------ one form
    def process_weights_after_loading(self, layer: Linear) -> None:
        stored, scale, zero = self._unpack(layer)
        layer.order = self._column_order(layer)
        if layer.order is not None:
            stored = stored[:, layer.order]
        for name in list(layer._parameters):
            if name != "bias":
                layer._parameters.pop(name)
        if not torch.isfinite(scale).all():
            raise ValueError(f"{layer.prefix!r} has a scale that is not finite; is the file whole?")
        if self.dtype == torch.float32 or not self._hold_groups(layer, stored, scale, zero):
            layer.words = pack_int32(stored, self.scheme.bits, 1)
            layer.scale, layer.zero = scale, zero.to(torch.uint8)

    def _hold_groups(self, layer: Linear, stored: Tensor, scale: Tensor, zero: Tensor) -> bool:
        """Store the weight for the CPU's product of groups; False if there is none for it."""
        middle = 2 ** (self.scheme.bits - 1)
        shift = None if (zero == middle).all() else (middle - zero) * scale
        if self.scheme.bits == 8:  # as int8, with the middle subtracted
            stored, middle = (stored - middle).to(torch.int8), 0
        return cpu_products.hold_groups(layer, stored, scale, shift, middle)

    def _unpack(self, layer: Linear) -> tuple[Tensor, Tensor, Tensor]:
        """stored `[N, K]`, scale `[N, G]` float32 and zero `[N, G]`, whatever the format."""
        scheme, rows = self.scheme, sum(layer.output_sizes)
        middle = 2 ** (scheme.bits - 1)
        if scheme.format == "compressed-tensors":
            self._check_shape(layer)
            stored = unpack_int32(layer.weight_packed, scheme.bits, 1, layer.input_size)
            scale = layer.weight_scale.data
            zero = torch.full_like(scale, middle, dtype=torch.int32)
            if not scheme.symmetric:
                zero = unpack_int32(layer.weight_zero_point, scheme.bits, 0, rows)
            return stored, scale, zero
        scale = layer.scales.data.T.contiguous()
        if scheme.format == "awq":
            return unpack_awq(layer.qweight).T, scale, unpack_awq(layer.qzeros).T
        stored = unpack_int32(layer.qweight, scheme.bits, 0, layer.input_size).T
        if scheme.symmetric:
            self._check_zeros(layer)
            return stored, scale, torch.full_like(scale, middle, dtype=torch.int32)
        is_v2 = scheme.format == "gptq_v2"
        return stored, scale, unpack_gptq_zeros(layer.qzeros, scheme.bits, is_v2).T

    def _check_zeros(self, layer: Linear) -> None:
        """Raise ValueError if zero points differ, which are equal in a symmetric file. Their value
        is not checked: some tools write it one too large."""
        zeros = unpack_int32(layer.qzeros, self.scheme.bits, 1, sum(layer.output_sizes))
        if zeros.numel() and zeros.min() != zeros.max():
            raise ValueError(
                f"{layer.prefix!r} has zero points from {zeros.min()} to {zeros.max()}, and "
                "quantization_config says sym, which means one for all; set sym to false"
            )

    def _check_shape(self, layer: Linear) -> None:
        """Raise ValueError if `weight_shape` is neither that of a projection nor of the stacked
        layer."""
        parts = [[part.output_size, part.input_size] for part in layer.whole_parts]
        stacked = [sum(rows for rows, _ in parts), parts[0][1]]
        for found, wanted in zip(layer.weight_shape.tolist(), parts, strict=True):
            if any(found) and found not in (wanted, stacked):  # zeros: the file has no such entry
                raise ValueError(
                    f"{layer.prefix!r} has a weight_shape of {found}; config.json asks for {wanted}"
                )

    def _column_order(self, layer: Linear) -> Tensor | None:
        """The columns sorted by group; None if they are in order. Groups must be equally large.

        Some GPTQ files have columns in an order of their own although their config says no
        `desc_act`; the file counts, as in transformers.
        """
        g_idx = getattr(layer, "weight_g_idx", getattr(layer, "g_idx", None))
        if g_idx is None or (not self.scheme.act_order and self._is_in_order(layer, g_idx)):
            return None
        if (g_idx != g_idx[0]).any():
            raise ValueError(
                f"{layer.prefix!r}: the projections that are stacked have different g_idx; "
                "they read the same inputs and must put them into the same groups"
            )
        groups = self._num_groups(layer)
        counts = torch.bincount(g_idx[0].clamp(min=0), minlength=groups)
        if (g_idx[0] < 0).any() or len(counts) != groups or (counts != counts[0]).any():
            raise ValueError(
                f"{layer.prefix!r}: g_idx must put {layer.input_size // groups} columns into each "
                f"of {groups} groups"
            )
        order = torch.argsort(g_idx[0], stable=True)
        return None if torch.equal(order, torch.arange(len(order), device=order.device)) else order

    def _is_in_order(self, layer: Linear, g_idx: Tensor) -> bool:
        """Whether groups follow one another. Raises ValueError if not, and this rank has a share
        of the columns."""
        size = layer.input_size // self._num_groups(layer)
        in_order = torch.arange(layer.input_size, device=g_idx.device) // size
        if (g_idx - g_idx[:, :1] == in_order).all():
            return True
        if layer.parts[0].in_ != layer.whole_parts[0].in_:
            raise ValueError(_NO_SHARES.format(layer.prefix))
        return False

    # ------------------------------------------------------------ products
    def apply(self, layer: Linear, x: Tensor, bias: Tensor | None) -> Tensor:
        if layer.order is not None:
            x = x[:, layer.order]
        if layer.matrix is not None:
            return cpu_products.groups_linear(layer, x, bias)
        if can_launch(x) and self.scheme.bits == 4 and x.dtype != torch.float32:
            y = w4a16_product(x, layer.words, layer.scale, layer.zero)
            return y if bias is None else y + bias
        return F.linear(x, self.weight(layer).to(x.dtype), bias)

    def weight(self, layer: Linear) -> Tensor:
        """The dequantised float32 weight, `[N, K]`, with columns in our order."""
        stored = unpack_int32(layer.words, self.scheme.bits, 1, layer.input_size)
        return dequantize(stored, layer.scale, layer.zero.int())
