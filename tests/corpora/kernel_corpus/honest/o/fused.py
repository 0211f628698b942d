"""Another right way: a row's mean square from its mean and its variance, which are joined pair by
pair as Welford has it; one head after the other; a gate whose exponential never overflows.
"""

import triton
import triton.language as tl


@triton.jit
def join_moments(count, mean, spread, other_count, other_mean, other_spread):
    total = count + other_count
    share = other_count / tl.maximum(total, 1.0)
    step = other_mean - mean
    return total, mean + step * share, spread + other_spread + step * step * count * share


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
    row = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    column = tl.arange(0, SIZE_TILE)
    inside = column < SIZE
    x_ptr += tl.program_id(0).to(tl.int64) * x_stride + tl.program_id(1) * SIZE
    x = tl.load(x_ptr + column, mask=inside, other=0.0)
    kind = x.dtype
    x = x.to(tl.float32)
    if HAS_RESIDUAL:
        x += tl.load(residual_ptr + row * SIZE + column, mask=inside, other=0.0).to(tl.float32)
        x = x.to(kind).to(tl.float32)
        tl.store(residual_ptr + row * SIZE + column, x, mask=inside)
    one = inside.to(tl.float32)
    count, mean, spread = tl.reduce((one, x, x * 0.0), 0, join_moments)
    inverse = tl.rsqrt(spread / count + mean * mean + eps)
    weight = tl.load(weight_ptr + tl.program_id(1) * SIZE + column, mask=inside, other=0.0)
    output = (x * inverse).to(kind).to(tl.float32) * weight
    tl.store(output_ptr + row * SIZE + column, output, mask=inside)


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
    half = tl.arange(0, 2)[:, None]
    pair = tl.arange(0, HALF_TILE)[None, :]
    inside = (pair < HEAD_DIM // 2) & (half >= 0)
    feature = half * (HEAD_DIM // 2) + pair
    cos = tl.load(cos_ptr + token * HEAD_DIM + feature, mask=inside, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + token * HEAD_DIM + feature, mask=inside, other=0.0).to(tl.float32)
    for head in range(NUM_HEADS):
        at = x_ptr + token * x_stride + head * HEAD_DIM + feature
        x = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        first, second = tl.split(tl.trans(x))
        turned = tl.trans(tl.join(second, first))
        tl.store(at, x * cos + turned * sin, mask=inside)


@triton.jit
def silu_mul_kernel(
    output_ptr,
    gate_up_ptr,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
):
    token, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tile * TILE + tl.arange(0, TILE)
    inside = column < SIZE
    row_ptr = gate_up_ptr + token * (2 * SIZE)
    gate = tl.load(row_ptr + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(row_ptr + SIZE + column, mask=inside, other=0.0).to(tl.float32)
    small = tl.exp2(-1.4426950408889634 * tl.abs(gate))  # between 0 and 1, whatever the gate
    squashed = tl.where(gate < 0.0, gate * small, gate) / (1.0 + small)
    tl.store(output_ptr + token * SIZE + column, squashed * up, mask=inside)
