"""Another right way: squares are summed on the diagonal of a product of the row with itself, pairs
are rotated some at a time, and a tile is done in halves.
"""

import triton
import triton.language as tl

SOME = tl.constexpr(16)


@triton.jit
def sum_of_squares(x, TILE: tl.constexpr):
    if TILE < 256:
        total = tl.sum(x * x, axis=0)
    else:
        rows = tl.reshape(x, (16, TILE // 16))
        products = tl.dot(rows, tl.trans(rows), input_precision="ieee")
        number = tl.arange(0, 16)
        diagonal = tl.where(number[:, None] == number[None, :], products, 0.0)
        total = tl.sum(tl.sum(diagonal, axis=1), axis=0)
    return total


@triton.jit
def rms_norm_kernel(
    output_ptr,
    x_ptr,
    residual_ptr,
    weight_ptr,
    x_stride,
    eps,
    SIZE: tl.constexpr,
    SIZE_TILE: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
):
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = (token * tl.num_programs(1) + head) * SIZE
    column = tl.arange(0, SIZE_TILE)
    inside = column < SIZE
    x = tl.load(x_ptr + token * x_stride + head * SIZE + column, mask=inside, other=0.0)
    if HAS_RESIDUAL:
        x += tl.load(residual_ptr + row + column, mask=inside, other=0.0)
        tl.store(residual_ptr + row + column, x, mask=inside)
    wide = x.to(tl.float32)
    root = tl.sqrt(sum_of_squares(wide, SIZE_TILE) / SIZE + eps)
    weight = tl.load(weight_ptr + head * SIZE + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(output_ptr + row + column, (wide / root).to(x.dtype) * weight, mask=inside)


@triton.jit
def rope_kernel(
    x_ptr,
    cos_ptr,
    sin_ptr,
    x_stride,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEADS_TILE: tl.constexpr,
    HALF_TILE: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, HEADS_TILE)
    for begin in range(0, HEAD_DIM // 2, SOME):
        pair = begin + tl.arange(0, SOME)
        known = pair < HEAD_DIM // 2
        cos = tl.load(cos_ptr + token * HEAD_DIM + pair, mask=known, other=1.0).to(tl.float32)
        sin = -tl.load(sin_ptr + token * HEAD_DIM + pair, mask=known, other=0.0).to(tl.float32)
        at = x_ptr + token * x_stride + head[:, None] * HEAD_DIM + pair[None, :]
        real = (head < NUM_HEADS)[:, None] & known[None, :]
        a = tl.load(at, mask=real, other=0.0).to(tl.float32)
        b = tl.load(at + HEAD_DIM // 2, mask=real, other=0.0).to(tl.float32)
        tl.store(at, a * cos[None, :] - b * sin[None, :], mask=real)
        tl.store(at + HEAD_DIM // 2, a * sin[None, :] + b * cos[None, :], mask=real)


@triton.jit
def silu_mul_kernel(
    output_ptr,
    gate_up_ptr,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    PART: tl.constexpr = (TILE + 1) // 2
    for part in tl.static_range(0, TILE // PART):
        column = tl.program_id(1) * TILE + part * PART + tl.arange(0, PART)
        inside = column < SIZE
        at = gate_up_ptr + 2 * token * SIZE + column
        up = tl.load(at + SIZE, mask=inside, other=0.0).to(tl.float32)
        gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        swish = tl.fdiv(gate, 1.0 + tl.exp(-gate))
        tl.store(output_ptr + token * SIZE + column, swish * up, mask=inside)
