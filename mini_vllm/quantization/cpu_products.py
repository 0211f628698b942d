"""Fast matrix products with quantised weights on a CPU.

`kernels/cpu.cpp` has all of them. Without a compiler, oneDNN has one for int8, but not on every
machine: without VNNI instructions it overflows silently. So it is tested once, on a small example
with the largest numbers that may occur, and not used if the result is wrong.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from mini_vllm.kernels import can_launch, native, unpacked
from mini_vllm.model.layers import Linear
from mini_vllm.platforms import platform_of

Int8Form = Literal["onednn", "native", "plain"]
GROUPS = (256, 128, 64, 32)


# ---------------------------------------------------------------- int8 x int8
def int8_form(weight: Tensor) -> Int8Form:
    """The form of int8 `weight` `[N, K]` for the fastest product on this machine.

    "native" is that of `cpu.cpp`; without a compiler, "onednn" if its product is exact. "plain" on
    a GPU, and where Triton's interpreter runs its kernels.
    """
    if not platform_of(weight.device).is_host or can_launch(weight):
        return "plain"
    if native.can_multiply_int8(weight):
        return "native"
    return "onednn" if can_multiply_int8() else "plain"


def pack_int8(weight: Tensor, form: Int8Form) -> Tensor:
    """A copy of int8 `weight` `[N, K]` in this form."""
    if form == "onednn":
        return torch.ops.onednn.qlinear_prepack(weight, None)
    return native.pack_int8(weight) if form == "native" else weight


def int8_product(x: Tensor, packed: Tensor, scale: Tensor) -> Tensor:
    """(x - 128) @ weight^T * scale: `[T, K]` uint8 -> `[T, N]` float32; `scale` is `[N]`.

    Activations are unsigned, with zero point 128: the instruction multiplies unsigned by signed
    numbers, and for signed activations oneDNN uses code that is hundreds of times slower.
    """
    zeros = zero_points(len(scale))
    return torch.ops.onednn.qlinear_pointwise(
        x, 1.0, 128, packed, scale, zeros, None, 1.0, 0, torch.float32, "none", [], ""
    )


@functools.cache
def zero_points(rows: int) -> Tensor:
    """Zero points of symmetric weights, made once for each size."""
    return torch.zeros(rows, dtype=torch.int64)


@functools.cache
def can_multiply_int8() -> bool:
    """Whether `int8_product` is exact here, also for the largest numbers.

    Processors without VNNI add pairs of products in 16 bits: 255 * 127 * 2 does not fit.
    """
    weight = torch.full((32, 256), 127, dtype=torch.int8)
    weight[1], weight[2, ::2] = -127, -127
    x = torch.full((3, 256), 255, dtype=torch.uint8)
    x[1], x[2, ::3] = 1, 0
    try:
        result = int8_product(x, pack_int8(weight, "onednn"), torch.ones(32, dtype=torch.float32))
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return torch.equal(result.double(), (x.double() - 128) @ weight.double().T)


# ---------------------------------------------------------------- numbers in groups
def group_size(columns: int, group: int) -> int | None:
    """The largest supported group size that divides the given one."""
    return next((g for g in GROUPS if group % g == 0 and columns % g == 0), None)


def hold_groups(
    layer: Linear, numbers: Tensor, scale: Tensor, shift: Tensor | None, middle: int
) -> bool:
    """Store the weight (number - middle) * scale + shift in the layout of `cpu.cpp`, if possible.

    `numbers` `[N, K]` are int32 of 0 .. 15, or int8; `scale` and `shift` `[N, G]` become float16,
    whose error must be at most half a step of bfloat16. The layer gets `words`, `scale`, `shift`,
    `middle` and `matrix`.

    Returns:
        Whether it was possible; if not, nothing has changed.
    """
    rows, columns = numbers.shape
    size = group_size(columns, columns // scale.shape[1])
    kept = [None if part is None else as_float16(part) for part in (scale, shift)]
    is_known = size is not None and native.can_multiply_groups(rows, columns, size)
    if not platform_of(numbers.device).is_host or not is_known or not all_fit(kept, (scale, shift)):
        return False
    repeats = columns // scale.shape[1] // cast(int, size)
    layer.scale, layer.shift = (
        None if part is None else part.t().repeat_interleave(repeats, 0).contiguous()
        for part in kept
    )
    is_int4 = numbers.dtype == torch.int32
    layer.words = native.pack_int4(numbers) if is_int4 else native.pack(numbers)
    layer.middle = middle
    layer.matrix = matrix_of(layer.words, layer.scale, layer.shift, middle)
    return True


def matrix_of(words: Tensor, scale: Tensor, shift: Tensor | None, middle: int) -> native.Matrix:
    """`Matrix.of_groups`, after a check of the environment variable that says when to unpack it: so
    a wrong value fails here, and not in a request."""
    unpacked.pinned()
    return native.Matrix.of_groups(words, scale, shift, middle)


def as_float16(numbers: Tensor) -> Tensor:
    return numbers.to(torch.float16)


def all_fit(kept: Sequence[Tensor | None], wanted: Sequence[Tensor | None]) -> bool:
    """Whether the error of each float16 number is at most that of bfloat16."""
    return all(
        a is None or b is None or bool(((a.float() - b.float()).abs() <= b.abs() * 2**-8).all())
        for a, b in zip(kept, wanted, strict=True)
    )


def groups_linear(layer: Linear, x: Tensor, bias: Tensor | None) -> Tensor:
    """x @ weight^T + bias `[T, K] -> [T, N]`, for a layer whose weight is stored in groups."""
    matrix = cast(native.Matrix, layer.matrix)
    if not native.can_run(x):
        bias = None if bias is None else bias.to(x.dtype)
        return F.linear(x, groups_weight(layer).to(x.dtype), bias)
    if unpacked.is_faster(matrix.kind, len(x), x.dtype):
        return unpacked.multiply(x, layer.words, layer.scale, layer.shift, layer.middle, bias)
    return native.multiply(x, matrix, bias)


def groups_weight(layer: Linear) -> Tensor:
    """The float32 weight `[N, K]` of a layer that stores it in groups."""
    shift = None if layer.shift is None else layer.shift.t()
    numbers = unpacked.numbers_of(layer.words)
    return unpacked.floats_of(numbers, layer.scale.t(), shift, layer.middle)


def group_rows(layer: Linear, rows: Tensor) -> Tensor:
    """Some rows of that weight, `[T] -> [T, K]`."""
    block = layer.words[rows // native.ROWS, :, rows % native.ROWS]  # one packed block for each row
    shift = None if layer.shift is None else layer.shift[:, rows].t()
    numbers = unpacked.numbers_of(block[:, :, None])
    return unpacked.floats_of(numbers, layer.scale[:, rows].t(), shift, layer.middle)
