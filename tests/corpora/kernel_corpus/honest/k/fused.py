"""Another right way: a root by powers of two, halves swapped by a flip or with tl.gather, a sigmoid
to the base of two, and a program that does what others leave."""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


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
    """The square root is half of the logarithm."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    out = (token * tl.num_programs(1) + head) * SIZE
    i = tl.arange(0, SIZE_TILE)
    keep = i < SIZE
    x = tl.load(
        x_ptr + token * x_stride + head * SIZE + i, keep, 0.0, eviction_policy="evict_first"
    )
    kind = x.dtype
    x = x.to(tl.float32)
    if HAS_RESIDUAL:
        x += tl.load(residual_ptr + out + i, keep, 0.0).to(tl.float32)
        x = x.to(kind)
        tl.store(residual_ptr + out + i, x, keep)
        x = x.to(tl.float32)
    mean = tl.sum(x * x) / SIZE
    x *= tl.exp2(-0.5 * tl.log2(mean + eps))
    x = x.to(kind)
    weight = tl.load(weight_ptr + head * SIZE + i, keep, 0.0)
    tl.store(output_ptr + out + i, x.to(tl.float32) * weight, keep)


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
    """Halves are an axis: x * cos + (its other half) * sin, with the sine's own sign."""
    HALF: tl.constexpr = HEAD_DIM // 2
    token = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, HEADS_TILE)[:, None, None]
    half = tl.arange(0, 2)[None, :, None]
    pair = tl.arange(0, HALF_TILE)[None, None, :]
    feature = half * HALF + pair
    where = x_ptr + token * x_stride + head * HEAD_DIM + feature
    mask = (head < NUM_HEADS) & (pair < HALF)
    x = tl.load(where, mask=mask, other=0.0).to(tl.float32)
    # sin and cos are the same in both halves, but for the sign: one is read, as is least
    angle = token * HEAD_DIM + HALF + pair
    cos = tl.load(cos_ptr + angle, mask=pair < HALF, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + angle, mask=pair < HALF, other=0.0).to(tl.float32)
    sign = half.to(tl.float32) * 2.0 - 1.0
    other = tl.flip(x, 1)
    tl.store(where, x * cos + other * (sin * sign), mask=mask)


@triton.jit
def silu_mul_kernel(
    output_ptr,
    gate_up_ptr,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
):
    """The first tile's program does all tiles of its row; the others have nothing left to do."""
    token = tl.program_id(0).to(tl.int64)
    if tl.program_id(1) > 0:
        return
    gate_ptr = gate_up_ptr + token * 2 * SIZE
    for begin in tl.range(0, SIZE, TILE, num_stages=3):
        i = begin + tl.arange(0, TILE)
        gate = tl.load(gate_ptr + i, mask=i < SIZE, other=0.0).to(tl.float32)
        up = tl.load(gate_ptr + SIZE + i, mask=i < SIZE, other=0.0).to(tl.float32)
        share = 1.0 / (1.0 + tl.exp2(gate * -LOG2E))
        tl.store(output_ptr + token * SIZE + i, gate * share * up, mask=i < SIZE)
