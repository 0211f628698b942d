"""Another right way: masks by `tl.where` after the load, reductions by a function of one's own, all
heads in one flat tile, and a long tile in pieces."""

import triton
import triton.language as tl

PIECE = tl.constexpr(128)


@triton.jit
def plus(a, b):
    return a + b


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
    head = tl.program_id(1)
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, SIZE_TILE)
    place = (token * tl.num_programs(1) + head) * SIZE + column
    loaded = tl.load(x_ptr + token * x_stride + head * SIZE + column, mask=column < SIZE)
    x = tl.where(column < SIZE, loaded, 0.0).to(loaded.dtype)
    if HAS_RESIDUAL:
        rest = tl.load(residual_ptr + place, mask=column < SIZE)
        rest = tl.where(column < SIZE, rest, 0.0)
        x = (x.to(tl.float32) + rest.to(tl.float32)).to(x.dtype)
        tl.store(residual_ptr + place, x, mask=column < SIZE)
    root = x.to(tl.float32) / tl.sqrt(SIZE * 1.0)
    inverse = tl.rsqrt(tl.reduce(root * root, 0, plus) + eps)
    normalised = (x.to(tl.float32) * inverse).to(x.dtype)
    weight = tl.load(weight_ptr + head * SIZE + column, mask=column < SIZE)
    tl.store(output_ptr + place, normalised.to(tl.float32) * weight, mask=column < SIZE)


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
    lane = tl.arange(0, HEADS_TILE * HALF_TILE)
    head, pair = lane // HALF, lane % HALF
    inside = lane < NUM_HEADS * HALF
    a_ptr = x_ptr + token * x_stride + head * HEAD_DIM + pair
    a = tl.load(a_ptr, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(a_ptr + HALF, mask=inside, other=0.0).to(tl.float32)
    cos = tl.load(cos_ptr + token * HEAD_DIM + pair).to(tl.float32)
    sin = tl.load(sin_ptr + token * HEAD_DIM + HALF + pair).to(tl.float32)
    tl.store(a_ptr, a * cos - b * sin, mask=inside)
    tl.store(a_ptr + HALF, a * sin + b * cos, mask=inside)


@triton.jit
def silu_mul_kernel(
    output_ptr,
    gate_up_ptr,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    WIDTH: tl.constexpr = PIECE if TILE > PIECE else TILE
    begin = tl.program_id(1) * TILE
    for start in range(begin, tl.minimum(begin + TILE, SIZE), WIDTH):
        column = start + tl.arange(0, WIDTH)
        inside = column < SIZE
        start_ptr = gate_up_ptr + token * (2 * SIZE) + column
        gate = tl.load(start_ptr, mask=inside, other=1.0).to(tl.float32)
        up = tl.load(start_ptr + SIZE, mask=inside, other=1.0).to(tl.float32)
        output = up / (1.0 + tl.exp(-gate)) * gate
        tl.store(output_ptr + token * SIZE + column, output, mask=inside)
