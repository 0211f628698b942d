"""Another right way: rows as two-dimensional tiles, one head after the other, `tl.sigmoid`."""

import triton
import triton.language as tl


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
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    LOW: tl.constexpr = 32 if SIZE_TILE > 32 else SIZE_TILE
    HIGH: tl.constexpr = SIZE_TILE // LOW
    column = tl.arange(0, HIGH)[:, None] * LOW + tl.arange(0, LOW)[None, :]
    inside = column < SIZE
    row = (token * tl.num_programs(1) + head) * SIZE
    weight = tl.load(weight_ptr + head * SIZE + column, mask=inside, other=0.0)
    x = tl.load(x_ptr + token * x_stride + head * SIZE + column, mask=inside, other=0.0)
    dtype = x.dtype
    x = x.to(tl.float32)
    if HAS_RESIDUAL:
        x += tl.load(residual_ptr + row + column, mask=inside, other=0.0)
        x = x.to(dtype).to(tl.float32)
        tl.store(residual_ptr + row + column, x, mask=inside)
    squares = tl.sum(tl.sum(x * x, axis=1), axis=0)
    normalised = x / tl.sqrt(squares / SIZE + eps)
    tl.store(output_ptr + row + column, normalised.to(dtype) * weight.to(tl.float32), mask=inside)


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
    HALF: tl.constexpr = HEAD_DIM // 2
    token = tl.program_id(0).to(tl.int64)
    pair = tl.arange(0, HALF_TILE)
    inside = pair < HALF
    # The first half of sin is negative.
    cos = tl.load(cos_ptr + token * HEAD_DIM + pair, mask=inside).to(tl.float32)
    minus_sin = tl.load(sin_ptr + token * HEAD_DIM + pair, mask=inside).to(tl.float32)
    for head in range(NUM_HEADS):
        here = x_ptr + token * x_stride + head * HEAD_DIM + pair
        a = tl.load(here, mask=inside).to(tl.float32)
        b = tl.load(here + HALF, mask=inside).to(tl.float32)
        tl.store(here + HALF, b * cos - a * minus_sin, mask=inside)
        tl.store(here, a * cos + b * minus_sin, mask=inside)


@triton.jit
def silu_mul_kernel(
    output_ptr,
    gate_up_ptr,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = column < SIZE
    row = gate_up_ptr + token * 2 * SIZE
    up = tl.load(row + SIZE + column, mask=inside).to(tl.float32)
    gate = tl.load(row + column, mask=inside).to(tl.float32)
    tl.store(output_ptr + token * SIZE + column, up * (gate * tl.sigmoid(gate)), mask=inside)
