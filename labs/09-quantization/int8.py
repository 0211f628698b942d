"""Whole numbers of 8 bits for weights and activations (W8A8): fewer bytes, and cheaper products.

    x [T, K]       scale of each token = largest magnitude / 127      x_q = round(x / scale)
    w [N, K]       scale of each row, from the checkpoint             w_q

    x @ w^T  =~  (x_q @ w_q^T in int32) * scale of the token * scale of the row

The scales leave the sum because they do not depend on the column.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mini_vllm.kernels import can_launch, native
from mini_vllm.kernels.quantization import per_token_quant, w8a8_product
from mini_vllm.model.layers import Linear
from mini_vllm.model.layout import ParamSpec
from mini_vllm.quantization import cpu_products
from mini_vllm.quantization.wna16 import register

MAX_INT8 = 127
MAX_ROWS = 1024  # rows that are converted to float32 at a time
MIN_SCALE = 1e-10 / MAX_INT8  # scale of a token of zeros, to avoid a division by 0


def quantize_per_token(x: Tensor) -> tuple[Tensor, Tensor]:
    """`x` `[T, K]` as int8, with a scale for each token: x =~ quantized * scale.

    The scale is the token's largest magnitude / 127, and never below MIN_SCALE, so that a token of
    zeros stays zeros. Divides by the scale in float32, whatever the dtype of `x`, and rounds half
    to even; a product with 1 / scale or 127 / magnitude is another number. `x` stays as it is.

    Returns:
        `[T, K]` int8 and the scales `[T, 1]` float32.

    Source: vllm/model_executor/layers/quantization/utils/int8_utils.py#L106-L156
    (per_token_quant_int8) @ v0.22.1.
    """
    # TODO 09.5
    raise NotImplementedError(
        "TODO 09.5: write quantize_per_token in labs/09-quantization/int8.py"
        " (phase 09, 02-mini-build.md#task-5)"
    )


def scaled_product(x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor) -> Tensor:
    """(x @ weight^T) * scales: int8 `[T, K]` and `[N, K]` -> `[T, N]` float32.

    `x_scale` is `[T, 1]`, `weight_scale` `[N, 1]`. The sum is exact: whole numbers, in float64.
    """
    # TODO 09.5
    raise NotImplementedError(
        "TODO 09.5: write scaled_product in labs/09-quantization/int8.py"
        " (phase 09, 02-mini-build.md#task-5)"
    )


class W8A8LinearMethod:
    """The `LinearMethod` of a layer with int8 weights, one scale a row, and int8 activations.

    Args:
        per_tensor: the checkpoint has one scale for each projection.
        static: the checkpoint has a scale for the activations, too.

    Source: vllm/model_executor/layers/quantization/compressed_tensors/schemes/compressed_tensors_w8a8_int8.py#L26-L112
    (CompressedTensorsW8A8Int8) @ v0.22.1.
    """  # noqa: E501

    def __init__(self, per_tensor: bool = False, static: bool = False) -> None:
        self.per_tensor, self.static = per_tensor, static

    def create_weights(self, layer: Linear) -> None:
        rows = sum(layer.output_sizes)
        shape = (rows, layer.input_size)
        register(layer, "weight", torch.zeros(shape, dtype=torch.int8), out_dim=0, in_dim=1)
        if self.per_tensor:
            scales = torch.zeros(len(layer.parts), dtype=torch.float32)
            register(layer, "weight_scale", scales, out_dim=None, per_part=True)
        else:
            register(layer, "weight_scale", torch.zeros(rows, 1, dtype=torch.float32), out_dim=0)
        if self.static:
            scales = torch.zeros(len(layer.parts), dtype=torch.float32)
            register(layer, "input_scale", scales, out_dim=None, per_part=True)

    def process_weights_after_loading(self, layer: Linear) -> None:
        scale = rows_of_scales(layer, layer.weight_scale.data)
        check_scales(layer, scale)
        input_scale = self._input_scale(layer) if self.static else None
        for name in ("weight_scale", "input_scale"):
            layer._parameters.pop(name, None)
        layer.input_scale = input_scale
        hold_int8(layer, layer.weight.data, scale)

    def _input_scale(self, layer: Linear) -> Tensor:
        """The scale of all activations: the largest one of the stacked projections."""
        scales = layer.input_scale.data
        bad = scales[~(torch.isfinite(scales) & (scales > 0))]
        if len(bad):
            raise ValueError(
                f"{layer.prefix!r} has an input_scale of {bad[0].item()}; it must be a finite "
                "number above 0"
            )
        return scales.max()

    def apply(self, layer: Linear, x: Tensor, bias: Tensor | None) -> Tensor:
        return int8_linear(layer, x, bias)


class Int8OnlineLinearMethod:
    """A checkpoint in the model's dtype; rows are quantised to int8 while it is loaded."""

    def create_weights(self, layer: Linear) -> None:
        layer.weight = nn.Parameter(torch.empty(sum(layer.output_sizes), layer.input_size))
        layer.weight.spec = ParamSpec(out_dim=0, in_dim=1)

    def process_weights_after_loading(self, layer: Linear) -> None:
        layer.input_scale = None
        weight = layer.weight.data
        rounded = torch.empty_like(weight, dtype=torch.int8)
        scale = weight.new_empty((len(weight), 1), dtype=torch.float32)
        parts = (each.split(MAX_ROWS) for each in (weight, rounded, scale))
        for rows, *held in zip(*parts, strict=True):
            for place, numbers in zip(held, quantize_per_token(rows), strict=True):
                place.copy_(numbers)
        hold_int8(layer, rounded, scale)

    def apply(self, layer: Linear, x: Tensor, bias: Tensor | None) -> Tensor:
        return int8_linear(layer, x, bias)


def rows_of_scales(layer: Linear, scale: Tensor) -> Tensor:
    """A scale for each row `[N, 1]`, from one for each row or for each stacked projection.

    vLLM quantises a fused matrix again with its largest scale, because its kernel takes only one.
    """
    if scale.dim() == 2:
        return scale
    sizes = torch.tensor(layer.output_sizes, device=scale.device)
    return scale.repeat_interleave(sizes)[:, None]


def check_scales(layer: Linear, scale: Tensor) -> None:
    bad = scale[~(torch.isfinite(scale) & (scale >= 0))]
    if len(bad):
        raise ValueError(
            f"{layer.prefix!r} has a weight scale of {bad[0].item()}; it must be a finite number "
            "of at least 0; is the file whole?"
        )


def hold_int8(layer: Linear, weight: Tensor, scale: Tensor) -> None:
    """Store int8 `weight` `[N, K]` only in the form of the fastest product."""
    layer.weight, layer.row_scale = None, scale.contiguous()
    layer.form = cpu_products.int8_form(weight)
    layer.int8 = cpu_products.pack_int8(weight, layer.form)
    if layer.form == "native":
        x_scale = 0 if layer.input_scale is None else float(layer.input_scale)
        layer.matrix = native.Matrix.of_int8(layer.int8, layer.row_scale, weight.shape[1], x_scale)


def int8_linear(layer: Linear, x: Tensor, bias: Tensor | None) -> Tensor:
    if layer.matrix is not None and native.can_run(x):
        return native.multiply(x, layer.matrix, bias)
    if layer.input_scale is not None:  # one scale for all tokens, from the checkpoint
        x_scale = layer.input_scale.repeat(len(x), 1)
        quantized = (x.float() / x_scale).round().clamp(-MAX_INT8 - 1, MAX_INT8).to(torch.int8)
    elif can_launch(x):
        quantized, x_scale = per_token_quant(x)
    else:
        quantized, x_scale = quantize_per_token(x)
    y = packed_product(layer, quantized, x_scale).to(x.dtype)
    return y if bias is None else y.add_(bias)


def packed_product(layer: Linear, x: Tensor, x_scale: Tensor) -> Tensor:
    """`scaled_product` with the packed weight of the layer."""
    weight, scale = layer.int8, layer.row_scale
    if layer.form == "onednn":
        unsigned = x.view(torch.uint8) ^ 128  # + 128, as bits
        return cpu_products.int8_product(unsigned, weight, scale[:, 0]).mul_(x_scale)
    if layer.form == "native":  # for a dtype that `cpu.cpp` does not support, or while compiling
        weight = native.unpack_int8(weight, x.shape[1])
    product = w8a8_product if can_launch(x) else scaled_product
    return product(x, x_scale, weight, scale)
