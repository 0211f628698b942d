"""Products of quantised weights that a CPU computes fast, each tried before it is trusted.

torch has them, but not for every machine: one is a slow reference here and exact there, another
overflows silently without the newest instructions. So each is probed once, on a small example with
the largest numbers that may occur; what fails is not used.
"""

from __future__ import annotations

import functools
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from mini_vllm.kernels import can_launch, native

Int8Form = Literal["onednn", "native", "plain"]
Int4Form = Literal["pairs", "torch"]
INT4_GROUPS = (256, 128, 64, 32)
MIN_NATIVE_TOKENS = {64: 8, 32: 1}
"""From so many tokens on our own int4 product is faster than torch's, by rows of a packed block:
with AVX512 torch's is fast for few, without it for none."""
MIN_UNPACKED_TOKENS = 512
"""From so many tokens on, unpacking the whole weight costs less than either loses."""


# ---------------------------------------------------------------- int8 x int8
def int8_form(weight: Tensor) -> Int8Form:
    """The form in which int8 `weight` `[N, K]` is multiplied fastest here.

    oneDNN's if its product is exact, else that of our own; neither on a GPU, or where Triton's
    interpreter is to show its kernels.
    """
    if weight.device.type != "cpu":
        return "plain"
    if can_multiply_int8():
        return "onednn"
    return "native" if native.can_multiply_int8(weight) and not can_launch(weight) else "plain"


def pack_int8(weight: Tensor, form: Int8Form) -> Tensor:
    """A copy of int8 `weight` `[N, K]` in this form."""
    if form == "onednn":
        return torch.ops.onednn.qlinear_prepack(weight, None)
    return native.pack_pairs(weight) if form == "native" else weight


def int8_product(x: Tensor, packed: Tensor, scale: Tensor) -> Tensor:
    """(x - 128) @ weight^T * scale: `[T, K]` uint8 -> `[T, N]` float32; `scale` is `[N]`.

    Activations are unsigned, with 128 for zero: the instruction multiplies unsigned by signed,
    and with signed ones oneDNN falls back to code that is hundreds of times slower.
    """
    zeros = zero_points(len(scale))
    return torch.ops.onednn.qlinear_pointwise(
        x, 1.0, 128, packed, scale, zeros, None, 1.0, 0, torch.float32, "none", [], ""
    )


@functools.cache
def zero_points(rows: int) -> Tensor:
    """Of symmetric weights: made once for every size."""
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


# ---------------------------------------------------------------- bfloat16 x int4
def int4_group(columns: int, group_size: int) -> int | None:
    """A group size that the int4 product knows, and whose groups lie inside the given ones."""
    return next((g for g in INT4_GROUPS if group_size % g == 0 and columns % g == 0), None)


def int4_form() -> Int4Form | None:
    """The form in which int4 weights are multiplied fastest here; None if there is no product.

    Pairs of bfloat16 where the processor multiplies such pairs; else the one that torch knows, and
    our own product with it.
    """
    if native.multiplies_bf16():
        return "pairs"
    return "torch" if can_multiply_int4() else None


def pack_int4(stored: Tensor, form: Int4Form) -> Tensor:
    """`stored` `[N, K]` int32 of 0 .. 15 in this form; torch's has `[N, K / 2]` bytes."""
    if form == "pairs":
        return native.pack_int4_pairs(stored)
    return torch.ops.aten._convert_weight_to_int4pack_for_cpu(stored, 1)


def int4_scales(scale: Tensor, zero: Tensor, repeats: int) -> Tensor:
    """Scale and shift of each group, `[G, N, 2]`: torch's product means (stored - 8) * s + shift.

    Each group of `scale` and `zero` `[N, G']` becomes `repeats` of the product's groups.
    """
    return int4_pairs(scale, (8 - zero) * scale).repeat_interleave(repeats, 0)


def int4_pairs(scale: Tensor, shift: Tensor) -> Tensor:
    """Scales and shifts `[N, G]` of the product as it wants them, `[G, N, 2]` bfloat16."""
    return torch.stack((scale, shift), -1).bfloat16().transpose(0, 1).contiguous()


def int4_linear(x: Tensor, packed: Tensor, form: Int4Form, group: int, scales: Tensor) -> Tensor:
    """x @ weight^T `[T, K] -> [T, N]`, by what is fastest for so many tokens."""
    if form == "pairs":
        if native.can_run(x) and len(x) < MIN_UNPACKED_TOKENS:
            return native.multiply_int4_pairs(x, packed, group, scales)
        stored = native.unpack_int4_pairs(packed)
        return F.linear(x, int4_weight(stored, group, scales).to(x.dtype))
    block_rows = int4_block_rows()
    if block_rows and len(x) >= MIN_UNPACKED_TOKENS:
        return F.linear(x, unpack_int4(packed, group, scales, block_rows).to(x.dtype))
    is_enough = len(x) >= MIN_NATIVE_TOKENS.get(block_rows or 0, 0)
    if block_rows in native.INT4_BLOCKS and is_enough and native.can_run(x):
        return native.multiply_int4(x, packed, group, scales, block_rows)
    return int4_product(x.bfloat16(), packed, group, scales).to(x.dtype)


def int4_product(x: Tensor, packed: Tensor, group: int, scales: Tensor) -> Tensor:
    """x @ weight^T: `[T, K]` bfloat16 -> `[T, N]`."""
    return torch.ops.aten._weight_int4pack_mm_for_cpu(x, packed, group, scales)


def unpack_int4(packed: Tensor, group: int, scales: Tensor, block_rows: int) -> Tensor:
    """The weight `[N, K]` in bfloat16, for products of many tokens that pay for it.

    In blocks of 64 rows (32 without AVX512), a byte holds a column of row i, and of row i + 32.
    """
    rows, columns = packed.shape[0], packed.shape[1] * 2
    blocks = packed.view(rows // block_rows, columns, block_rows // 2)
    stored = torch.cat((blocks & 15, blocks >> 4), -1)  # [N / 64, K, 64]
    return int4_weight(stored.transpose(1, 2).reshape(rows, columns), group, scales)


def int4_weight(stored: Tensor, group: int, scales: Tensor) -> Tensor:
    """The weight `[N, K]` in bfloat16 that `stored` `[N, K]` and the product's scales mean."""
    scale, shift = (part.t().contiguous()[..., None] for part in scales.unbind(-1))
    groups = stored.unflatten(1, (-1, group)).to(torch.bfloat16)
    return groups.sub_(8).mul_(scale).add_(shift).flatten(1)


def _int4_example() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs whose product is exact, its packed weight and scales, and the weight."""
    rows, columns = 128, 64  # in groups of 32
    stored = (torch.arange(rows * columns).view(rows, columns) * 7 % 16).int()
    scale = 2.0 ** -(torch.arange(rows * 2).view(rows, 2) % 4)
    zero = torch.arange(rows * 2).view(rows, 2) % 16
    weight = (stored.unflatten(1, (2, -1)) - zero[..., None]) * scale[..., None]
    x = torch.zeros(2, columns, dtype=torch.bfloat16)
    x[0, 0], x[1, 40] = 1, 2
    return x, pack_int4(stored, "torch"), int4_scales(scale, zero, 1), weight.flatten(1).bfloat16()


@functools.cache
def can_multiply_int4() -> bool:
    """Whether `int4_product` is right here."""
    try:
        x, packed, scales, weight = _int4_example()
        return torch.equal(int4_product(x, packed, 32, scales), x @ weight.T)
    except (AttributeError, RuntimeError, NotImplementedError):
        return False


@functools.cache
def int4_block_rows() -> int | None:
    """Rows that the packed order keeps together here; None: an order that we do not know."""
    _, packed, scales, weight = _int4_example()
    for rows in (64, 32, 16):
        if torch.equal(unpack_int4(packed, 32, scales, rows), weight):
            return rows
    return None
