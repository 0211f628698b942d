"""Another right way: block pointers, and exponentials that cannot overflow."""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def row_of(start_ptr, SIZE: tl.constexpr, SIZE_TILE: tl.constexpr):
    return tl.make_block_ptr(start_ptr, (SIZE,), (1,), (0,), (SIZE_TILE,), (0,))


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
    source = row_of(x_ptr + token * x_stride + head * SIZE, SIZE, SIZE_TILE)
    x = tl.load(source, boundary_check=(0,), padding_option="zero")
    if HAS_RESIDUAL:
        kept = row_of(residual_ptr + number * SIZE, SIZE, SIZE_TILE)
        rest = tl.load(kept, boundary_check=(0,), padding_option="zero")
        x = (rest.to(tl.float32) + x.to(tl.float32)).to(x.dtype)
        tl.store(kept, x, boundary_check=(0,))
    wide = x.to(tl.float32)
    mean = tl.sum(wide * wide, axis=0) * (1.0 / SIZE)
    weight = row_of(weight_ptr + head * SIZE, SIZE, SIZE_TILE)
    weight = tl.load(weight, boundary_check=(0,), padding_option="zero")
    output = (wide * (1.0 / tl.sqrt(mean + eps))).to(x.dtype)
    output = output.to(tl.float32) * weight.to(tl.float32)
    target = row_of(output_ptr + number * SIZE, SIZE, SIZE_TILE)
    tl.store(target, output.to(x.dtype), boundary_check=(0,))


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
    cos_row = row_of(cos_ptr + token * HEAD_DIM, HALF, HALF_TILE)
    sin_row = row_of(sin_ptr + token * HEAD_DIM + HALF, HALF, HALF_TILE)
    cos = tl.load(cos_row, boundary_check=(0,), padding_option="zero").to(tl.float32)[None, :]
    sin = tl.load(sin_row, boundary_check=(0,), padding_option="zero").to(tl.float32)[None, :]
    left = tl.make_block_ptr(
        x_ptr + token * x_stride,
        shape=(NUM_HEADS, HALF),
        strides=(HEAD_DIM, 1),
        offsets=(0, 0),
        block_shape=(HEADS_TILE, HALF_TILE),
        order=(1, 0),
    )
    right = tl.make_block_ptr(
        x_ptr + token * x_stride + HALF,
        shape=(NUM_HEADS, HALF),
        strides=(HEAD_DIM, 1),
        offsets=(0, 0),
        block_shape=(HEADS_TILE, HALF_TILE),
        order=(1, 0),
    )
    a = tl.load(left, boundary_check=(0, 1), padding_option="zero")
    b = tl.load(right, boundary_check=(0, 1), padding_option="zero")
    dtype = a.dtype
    a, b = a.to(tl.float32), b.to(tl.float32)
    tl.store(left, tl.fma(-b, sin, a * cos).to(dtype), boundary_check=(0, 1))
    tl.store(right, tl.fma(a, sin, b * cos).to(dtype), boundary_check=(0, 1))


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
