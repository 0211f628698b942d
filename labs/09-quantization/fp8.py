"""Floating point numbers of 8 bits: four of exponent, three of mantissa (e4m3).

    largest number 448   smallest normal 2^-6   smallest of all 2^-9   relative step 1/16 to 1/8

Each number has an exponent, so outliers do not affect the precision of the others. Weights have one
scale for each matrix, row, or block of 128 x 128. A CPU has no product for them: the weights are
converted to the model's dtype once, which saves nothing. A GPU keeps the bytes.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mini_vllm.model.layers import UNQUANTIZED, Linear
from mini_vllm.model.layout import ParamSpec
from mini_vllm.platforms import platform_of
from mini_vllm.quantization.int8 import check_scales, rows_of_scales
from mini_vllm.quantization.wna16 import register

logger = logging.getLogger(__name__)

FP8 = torch.float8_e4m3fn
MAX_FP8 = 448.0
MIN_SCALE = 1e-12


def to_fp8(x: Tensor) -> Tensor:
    """The nearest e4m3 number. Numbers out of range become the largest one, which the cast does not
    do on every device."""
    return x.clamp(-MAX_FP8, MAX_FP8).to(FP8)


def quantize_block(weight: Tensor, block: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """`weight` `[N, K]` as e4m3, with a scale for each block of `block[0]` rows and `block[1]`
    columns: weight =~ quantized * scale.

    A block's largest magnitude becomes 448, but no scale is below MIN_SCALE: a block of zeros has
    that one. The last blocks of a row or column may be smaller. Numbers stay in float32 until they
    are rounded to e4m3, once; a weight is divided by its scale, and a product with 1 / scale is
    another number. `weight` stays as it is.

    Returns:
        `[N, K]` e4m3, and scales `[ceil(N / rows), ceil(K / columns)]` float32.
    """
    # TODO 09.6
    raise NotImplementedError(
        "TODO 09.6: write quantize_block in labs/09-quantization/fp8.py"
        " (phase 09, 02-mini-build.md#task-6)"
    )


def dequantize_block(weight: Tensor, scale: Tensor, block: tuple[int, int]) -> Tensor:
    """The float32 weights that e4m3 `weight` `[N, K]` means: each times the scale of its block."""
    # TODO 09.6
    raise NotImplementedError(
        "TODO 09.6: write dequantize_block in labs/09-quantization/fp8.py"
        " (phase 09, 02-mini-build.md#task-6)"
    )


def spread(scale: Tensor, block: tuple[int, int], shape: tuple[int, ...]) -> Tensor:
    """The scale of each number of a `[N, K]` matrix, from those of its blocks."""
    rows = scale.repeat_interleave(block[0], 0)[: shape[0]]
    return rows.repeat_interleave(block[1], 1)[:, : shape[1]]


class Fp8LinearMethod:
    """The `LinearMethod` of a layer with e4m3 weights and unquantised activations.

    Args:
        block: rows and columns that share a scale; None: see `per_tensor`.
        per_tensor: one scale for each projection; otherwise one for each row.
        static: the checkpoint has scales for activations, which are not used here.
        scale_name: name of the scales in the checkpoint.
        scale_dims: their dimensions there: 2; or with ones left out, 1 for rows; or with ones put
            in, 4 for blocks.

    Source: vllm/model_executor/layers/quantization/fp8.py#L261-L487 (Fp8LinearMethod) @ v0.22.1.
    """

    def __init__(
        self,
        block: tuple[int, int] | None = None,
        per_tensor: bool = False,
        static: bool = False,
        scale_name: str = "weight_scale",
        scale_dims: int = 2,
    ) -> None:
        self.block, self.per_tensor, self.static = block, per_tensor, static
        self.scale_name, self.scale_dims = scale_name, scale_dims

    def create_weights(self, layer: Linear) -> None:
        self.dtype = torch.get_default_dtype()
        sizes, columns = layer.output_sizes, layer.input_size
        shape: tuple[int, ...]
        spec: dict[str, Any]
        weight = torch.zeros(sum(sizes), columns).to(FP8)
        register(layer, "weight", weight, out_dim=0, in_dim=1)
        if self.block:
            rows, cols = self.block
            counts = sum(-(-size // rows) for size in sizes), -(-columns // cols)
            shape = counts if self.scale_dims == 2 else (counts[0], 1, counts[1], 1)
            in_dim = self.scale_dims // 2
            spec = dict(out_dim=0, in_dim=in_dim, out_pack=rows, in_pack=cols)
        elif self.per_tensor:
            shape, spec = (len(sizes),), dict(out_dim=None, per_part=True)
        else:
            shape, spec = (sum(sizes), 1)[: self.scale_dims], dict(out_dim=0)
        register(layer, self.scale_name, torch.zeros(shape, dtype=torch.float32), **spec)
        if self.static:
            scales = torch.zeros(len(sizes), dtype=torch.float32)
            register(layer, "input_scale", scales, out_dim=None, per_part=True, optional=True)

    def process_weights_after_loading(self, layer: Linear) -> None:
        scale = getattr(layer, self.scale_name).data
        check_scales(layer, scale)
        if not self.per_tensor:
            scale = scale.flatten(1) if scale.dim() > 1 else scale[:, None]
        for name in (self.scale_name, "input_scale"):
            layer._parameters.pop(name, None)
        self._hold(layer, layer.weight.data, self._full_scale(layer, scale))

    def _hold(self, layer: Linear, weight: Tensor, scale: Tensor) -> None:
        """On a GPU keep the bytes; on a CPU convert them to the model's dtype."""
        layer.fp8, layer.row_scale, layer.weight = weight, scale, None
        if platform_of(weight.device).is_host:
            warn_once()
            wide = self.weight(layer).to(self.dtype)
            layer.fp8 = layer.row_scale = layer.packed = None
            layer.weight = nn.Parameter(wide, requires_grad=False)
            UNQUANTIZED.process_weights_after_loading(layer)

    def _full_scale(self, layer: Linear, scale: Tensor) -> Tensor:
        """Scales `[N, 1]` for each row, or `[N, ceil(K / columns)]` for each row's blocks.

        Blocks do not cross the tensors of the file; the last block of each may be smaller.
        """
        if not self.block:
            return rows_of_scales(layer, scale)
        rows, sizes = self.block[0], layer.output_sizes
        if layer.is_stacked_in_file:
            sizes = [sum(sizes)]
        counts = [-(-size // rows) for size in sizes]
        parts = scale[: sum(counts)].split(counts)
        return torch.cat(
            [
                part.repeat_interleave(rows, 0)[:size]
                for part, size in zip(parts, sizes, strict=True)
            ]
        )

    def apply(self, layer: Linear, x: Tensor, bias: Tensor | None) -> Tensor:
        if layer.fp8 is None:
            return UNQUANTIZED.apply(layer, x, bias)
        return F.linear(x, self.weight(layer).to(x.dtype), bias)

    def weight(self, layer: Linear) -> Tensor:
        """The dequantised float32 weight `[N, K]`."""
        if not self.block:
            return layer.fp8.float() * layer.row_scale
        return dequantize_block(layer.fp8, layer.row_scale, (1, self.block[1]))


class Fp8OnlineLinearMethod(Fp8LinearMethod):
    """A checkpoint in the model's dtype; each projection is quantised to e4m3 while it is loaded.

    vLLM has one scale for a whole fused matrix; here each projection has its own.
    Source: vllm/model_executor/layers/quantization/fp8.py#L488-L563 (Fp8OnlineLinearMethod)
    @ v0.22.1.
    """

    def create_weights(self, layer: Linear) -> None:
        self.dtype = torch.get_default_dtype()
        layer.weight = nn.Parameter(torch.empty(sum(layer.output_sizes), layer.input_size))
        layer.weight.spec = ParamSpec(out_dim=0, in_dim=1)

    def process_weights_after_loading(self, layer: Linear) -> None:
        numbers, scales = [], []
        for part in layer.weight.data.split(layer.output_sizes):
            block = self.block or tuple(part.shape)
            quantized, scale = quantize_block(part, block)
            numbers.append(quantized)
            scales.append(scale.repeat_interleave(block[0], 0)[: len(part)])
        self._hold(layer, torch.cat(numbers), torch.cat(scales))


@functools.cache
def warn_once() -> None:
    logger.warning(
        "this CPU has no product for fp8 weights: they are widened while loading, which saves "
        "neither memory nor time; int8 or W4A16 weights do"
    )
