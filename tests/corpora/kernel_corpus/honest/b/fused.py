"""Another right way: functions that load and store rows, and exponentials that cannot overflow."""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def load_row(start_ptr, SIZE: tl.constexpr, SIZE_TILE: tl.constexpr):
    column = tl.arange(0, SIZE_TILE)
    return tl.load(start_ptr + column, mask=column < SIZE, other=0.0)


@triton.jit
def store_row(start_ptr, row, SIZE: tl.constexpr, SIZE_TILE: tl.constexpr):
    column = tl.arange(0, SIZE_TILE)
    tl.store(start_ptr + column, row, mask=column < SIZE)


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
    number = token * tl.num_programs(1) + head
    x = load_row(x_ptr + token * x_stride + head * SIZE, SIZE, SIZE_TILE)
    if HAS_RESIDUAL:
        rest = load_row(residual_ptr + number * SIZE, SIZE, SIZE_TILE)
        x = (rest.to(tl.float32) + x.to(tl.float32)).to(x.dtype)
        store_row(residual_ptr + number * SIZE, x, SIZE, SIZE_TILE)
    wide = x.to(tl.float32)
    mean = tl.sum(wide * wide, axis=0) * (1.0 / SIZE)
    weight = load_row(weight_ptr + head * SIZE, SIZE, SIZE_TILE)
    output = (wide * (1.0 / tl.sqrt(mean + eps))).to(x.dtype)
    output = output.to(tl.float32) * weight.to(tl.float32)
    store_row(output_ptr + number * SIZE, output.to(x.dtype), SIZE, SIZE_TILE)


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
    cos = load_row(cos_ptr + token * HEAD_DIM, HALF, HALF_TILE).to(tl.float32)[None, :]
    sin = load_row(sin_ptr + token * HEAD_DIM + HALF, HALF, HALF_TILE).to(tl.float32)[None, :]
    head, pair = tl.arange(0, HEADS_TILE)[:, None], tl.arange(0, HALF_TILE)[None, :]
    left = x_ptr + token * x_stride + head * HEAD_DIM + pair
    right = left + HALF
    is_there = (head < NUM_HEADS) & (pair < HALF)
    a = tl.load(left, mask=is_there, other=0.0)
    b = tl.load(right, mask=is_there, other=0.0)
    dtype = a.dtype
    a, b = a.to(tl.float32), b.to(tl.float32)
    tl.store(left, tl.fma(-b, sin, a * cos).to(dtype), mask=is_there)
    tl.store(right, tl.fma(a, sin, b * cos).to(dtype), mask=is_there)


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
    start = gate_up_ptr + token * 2 * SIZE + column
    gate = tl.load(start, mask=inside, other=0.0).to(tl.float32)
    small = tl.exp2(-tl.abs(gate) * LOG2_E)  # at most 1
    sigmoid = tl.where(gate < 0.0, small, 1.0) / (1.0 + small)
    up = tl.load(start + SIZE, mask=inside, other=0.0).to(tl.float32)
    tl.store(output_ptr + token * SIZE + column, gate * sigmoid * up, mask=inside)
