"""Loops over chunks instead of whole rows; Welford-free two passes; one head at a time."""

import triton
import triton.language as tl


@triton.jit
def square(x):
    return x * x


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
    t = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1).to(tl.int64)
    H = tl.num_programs(1)
    out_row = output_ptr + (t * H + h) * SIZE
    res_row = residual_ptr + (t * H + h) * SIZE
    x_row = x_ptr + t * x_stride + h * SIZE
    col = tl.max_contiguous(tl.arange(0, SIZE_TILE), SIZE_TILE)
    ok = col < SIZE
    x = tl.load(x_row + col, ok, 0.0, eviction_policy="evict_first").to(tl.float32)
    if HAS_RESIDUAL:
        x += tl.load(res_row + col, ok, 0.0).to(tl.float32)
        rounded = x.to(x_ptr.type.element_ty)
        tl.store(res_row + col, rounded, ok)
        x = rounded.to(tl.float32)
    mean = tl.sum(tl.where(ok, square(x), 0.0)) * (1.0 / SIZE)
    inv = 1.0 / tl.sqrt(mean + eps)
    w = tl.load(weight_ptr + h * SIZE + col, mask=ok, other=1.0)
    y = (x * inv).to(x_ptr.type.element_ty) * 1.0
    tl.store(
        out_row + col, (y.to(tl.float32) * w.to(tl.float32)).to(output_ptr.dtype.element_ty), ok
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
    t = tl.program_id(0).to(tl.int64)
    HALF: tl.constexpr = HEAD_DIM // 2
    i = tl.arange(0, HALF_TILE)
    ok = i < HALF
    c = tl.load(cos_ptr + t * HEAD_DIM + i, mask=ok).to(tl.float32)
    s = -tl.load(sin_ptr + t * HEAD_DIM + i, mask=ok).to(tl.float32)
    for h in range(NUM_HEADS):
        base = x_ptr + t * x_stride + h * HEAD_DIM + i
        a = tl.load(base, mask=ok).to(tl.float32)
        b = tl.load(base + HALF, mask=ok).to(tl.float32)
        tl.debug_barrier()
        tl.store(base, tl.fma(a, c, -b * s), mask=ok)
        tl.store(base + HALF, tl.fma(b, c, a * s), mask=ok)


@triton.jit
def silu_mul_kernel(output_ptr, gate_up_ptr, SIZE: tl.constexpr, TILE: tl.constexpr):
    t = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1)
    CHUNK: tl.constexpr = TILE if TILE < 128 else 128
    start = k * TILE
    while start < tl.minimum((k + 1) * TILE, SIZE):
        col = start + tl.arange(0, CHUNK)
        ok = col < SIZE
        g = tl.load(gate_up_ptr + t * (2 * SIZE) + col, mask=ok, other=0.0).to(tl.float32)
        u = tl.load(gate_up_ptr + t * (2 * SIZE) + SIZE + col, mask=ok, other=0.0).to(tl.float32)
        tl.store(output_ptr + t * SIZE + col, g * tl.sigmoid(g) * u, mask=ok)
        start += CHUNK
