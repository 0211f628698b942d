"""Another right way: squares summed lane by lane and then over lanes, heads some at a time, and a
logistic function that only ever takes the exponential of a negative number."""

import triton
import triton.language as tl

SOME_HEADS = tl.constexpr(4)


@triton.jit
def sum_of_squares(x, TILE: tl.constexpr):
    """Of a tile of float32: first down the columns of a rectangle, then along what is left."""
    LANES: tl.constexpr = min(TILE, 32)
    table = tl.reshape(x * x, (TILE // LANES, LANES))
    return tl.sum(tl.sum(table, axis=0), axis=0)


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
    token, head, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    token = tl.cast(token, tl.int64)
    column = tl.arange(0, SIZE_TILE)
    near = tl.minimum(column, SIZE - 1)
    inside = column < SIZE
    own_row = (token * heads + head) * SIZE
    x = tl.load(x_ptr + (token * x_stride + head * SIZE) + near).to(tl.float32)
    if HAS_RESIDUAL:
        x += tl.load(residual_ptr + own_row + column, mask=inside, other=0.0).to(tl.float32)
        x = x.to(x_ptr.dtype.element_ty)
        tl.store(residual_ptr + own_row + column, x, mask=inside)
        x = x.to(tl.float32)
    x = tl.where(inside, x, 0.0)
    length = tl.sqrt(sum_of_squares(x, SIZE_TILE) * (1.0 / SIZE) + eps)
    weight = tl.load(weight_ptr + head * SIZE + near).to(tl.float32)
    row = (x / length).to(x_ptr.dtype.element_ty).to(tl.float32)
    tl.store(output_ptr + own_row + column, weight * row, mask=inside)


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
    HALF: tl.constexpr = HEAD_DIM // 2
    pair = tl.arange(0, HALF_TILE)[None, :]
    real = tl.load(cos_ptr + token * HEAD_DIM + pair, mask=pair < HALF, other=1.0).to(tl.float32)
    turn = tl.load(sin_ptr + token * HEAD_DIM + pair, mask=pair < HALF, other=0.0).to(tl.float32)
    for begin in tl.range(0, NUM_HEADS, SOME_HEADS):
        head = begin + tl.arange(0, SOME_HEADS)[:, None]
        there = (head < NUM_HEADS) & (pair < HALF)
        low_ptr = x_ptr + token * x_stride + (head * HEAD_DIM + pair)
        low = tl.load(low_ptr, mask=there)
        high = tl.load(low_ptr + HALF, mask=there)
        turned_low = tl.fma(high.to(tl.float32), turn, low.to(tl.float32) * real)
        turned_high = high.to(tl.float32) * real - low.to(tl.float32) * turn
        tl.store(low_ptr, turned_low.to(low.dtype), mask=there)
        tl.store(low_ptr + HALF, turned_high.to(high.dtype), mask=there)


@triton.jit
def logistic(x):
    """1 / (1 + exp(-x))."""
    small = tl.exp(-tl.abs(x))
    return tl.where(x < 0.0, small, 1.0) / (1.0 + small)


@triton.jit
def silu_mul_kernel(output_ptr, gate_up_ptr, SIZE: tl.constexpr, TILE: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    last = SIZE - 1
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    near = tl.minimum(column, last)
    row_ptr = gate_up_ptr + token * (2 * SIZE)
    gate, up = tl.load(row_ptr + near), tl.load(row_ptr + SIZE + near)
    gate, up = gate.to(tl.float32), up.to(tl.float32)
    product = up * (gate * logistic(gate))
    tl.store(output_ptr + token * SIZE + column, product, mask=column <= last)
