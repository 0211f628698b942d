"""Another right way: a norm of numbers that were divided by the largest first, rotations by
`tl.fma` with the sine of the first half, and a sigmoid from the smaller of two exponentials."""

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
    head, heads = tl.program_id(1), tl.num_programs(1)
    token = tl.cast(tl.program_id(0), tl.int64)
    feature = tl.arange(0, SIZE_TILE)
    known = feature < SIZE
    x = tl.load(x_ptr + (token * x_stride + head * SIZE) + feature, mask=known, other=0.0)
    begin = (token * heads + head) * SIZE
    if HAS_RESIDUAL:
        x = x.to(tl.float32) + tl.load(residual_ptr + begin + feature, mask=known, other=0.0)
        x = x.to(x_ptr.dtype.element_ty)
        tl.store(residual_ptr + begin + feature, x, mask=known)
    x = x.to(tl.float32)
    largest = tl.max(tl.abs(x))
    largest = tl.where(largest > 0.0, largest, 1.0)
    small = x / largest
    mean = tl.sum(small * small) / SIZE
    root = tl.sqrt(mean + eps / largest / largest)
    row = (small / root).to(x_ptr.dtype.element_ty).to(tl.float32)
    weight = tl.load(weight_ptr + head * SIZE + feature, mask=known, other=0.0).to(tl.float32)
    tl.store(
        output_ptr + begin + feature, (row * weight).to(output_ptr.dtype.element_ty), mask=known
    )


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
    token = tl.cast(tl.program_id(0), tl.int64)
    lane = tl.arange(0, HEADS_TILE * HALF_TILE)
    head, pair = lane // HALF_TILE, lane % HALF_TILE
    mine = (head < NUM_HEADS) & (pair < HALF)
    sine = -tl.load(sin_ptr + token * HEAD_DIM + pair, mask=mine, other=0.0).to(tl.float32)
    cosine = tl.load(cos_ptr + token * HEAD_DIM + pair, mask=mine, other=0.0).to(tl.float32)
    left_ptr = x_ptr + token * x_stride + head * HEAD_DIM + pair
    left = tl.load(left_ptr, mask=mine, other=0.0).to(tl.float32)
    right = tl.load(left_ptr + HALF, mask=mine, other=0.0).to(tl.float32)
    tl.store(left_ptr, tl.fma(left, cosine, -right * sine), mask=mine)
    tl.store(left_ptr + HALF, tl.fma(right, cosine, left * sine), mask=mine)


@triton.jit
def silu_mul_kernel(
    output_ptr,
    gate_up_ptr,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
):
    PIECE: tl.constexpr = 256 if TILE > 256 else TILE
    token = tl.cast(tl.program_id(0), tl.int64)
    row_ptr = gate_up_ptr + token * (2 * SIZE)
    for piece in tl.static_range(TILE // PIECE):
        column = tl.program_id(1) * TILE + piece * PIECE + tl.arange(0, PIECE)
        up = tl.load(row_ptr + SIZE + column, mask=column < SIZE, other=0.0).to(tl.float32)
        gate = tl.load(row_ptr + column, mask=column < SIZE, other=0.0).to(tl.float32)
        less = tl.exp(-tl.abs(gate))
        squashed = tl.where(gate < 0.0, less, 1.0) / (1.0 + less)
        tl.store(output_ptr + token * SIZE + column, gate * squashed * up, mask=column < SIZE)
