"""Another right way: in double precision, and pairs as a tile's last axis, split and joined."""

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
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    KIND: tl.constexpr = x_ptr.dtype.element_ty
    feature = tl.arange(0, SIZE_TILE)
    mine = feature < SIZE
    own = (token * tl.num_programs(1) + head) * SIZE + feature
    x = tl.load(x_ptr + token * x_stride + head * SIZE + feature, mask=mine, other=0)
    if HAS_RESIDUAL:
        x += tl.load(residual_ptr + own, mask=mine, other=0)
        tl.store(residual_ptr + own, x, mask=mine)
    wide = x.to(tl.float64)
    mean = tl.sum(wide * wide) / SIZE
    row = (wide / tl.sqrt(mean + eps)).to(KIND)
    weight = tl.load(weight_ptr + head * SIZE + feature, mask=mine, other=0)
    tl.store(output_ptr + own, row * weight, mask=mine)


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
    pair = tl.arange(0, HALF_TILE)
    known = pair < HALF
    cos = tl.load(cos_ptr + token * HEAD_DIM + pair, mask=known, other=1).to(tl.float32)
    sin = tl.load(sin_ptr + token * HEAD_DIM + pair, mask=known, other=0).to(tl.float32)
    head = tl.arange(0, HEADS_TILE)[:, None, None]
    feature = pair[None, :, None] + tl.arange(0, 2)[None, None, :] * HALF
    at = x_ptr + token * x_stride + head * HEAD_DIM + feature
    mask = (head < NUM_HEADS) & known[None, :, None]
    a, b = tl.split(tl.load(at, mask=mask).to(tl.float32))
    # the sine of the first half is negative
    turned = tl.join(a * cos + b * sin, b * cos - a * sin)
    tl.store(at, turned.to(x_ptr.dtype.element_ty), mask=mask)


@triton.jit
def silu_mul_kernel(output_ptr, gate_up_ptr, SIZE: tl.constexpr, TILE: tl.constexpr):
    token = tl.program_id(axis=0).to(tl.int64)
    begin = tl.program_id(axis=1) * TILE
    column = tl.arange(0, TILE) + begin
    row_ptr = gate_up_ptr + token * (SIZE + SIZE)
    gate = tl.load(row_ptr + column, mask=column < SIZE, other=0).to(tl.float64)
    up = tl.load(row_ptr + SIZE + column, mask=column < SIZE, other=0).to(tl.float64)
    product = up * gate / (1 + tl.exp(-gate))
    at = output_ptr + token * SIZE + column
    tl.store(at, product.to(output_ptr.dtype.element_ty), mask=column < SIZE)
