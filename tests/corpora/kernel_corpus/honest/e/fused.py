"""Another right way: sums in two steps, tiles on their side, one piece after another."""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
PIECES = tl.constexpr(2)


@triton.jit
def mean_square(x, SIZE: tl.constexpr, SIZE_TILE: tl.constexpr):
    if SIZE_TILE < 4:
        total = tl.sum(x * x, axis=0)
    else:  # behind an `if` with a `return` the compiler would read on
        table = tl.reshape(x, (SIZE_TILE // 4, 4))
        total = tl.sum(tl.sum(table * table, axis=1), axis=0)
    return total / SIZE


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
    x_ptr += tl.program_id(0).to(tl.int64) * x_stride + tl.program_id(1) * SIZE
    output_ptr += row * SIZE
    column = tl.arange(0, SIZE_TILE)
    inside = column < SIZE
    x = tl.load(x_ptr + column, mask=inside, other=0.0)
    dtype: tl.constexpr = x.dtype
    if HAS_RESIDUAL:
        residual_ptr += row * SIZE
        x = (tl.load(residual_ptr + column, mask=inside, other=0.0).to(tl.float32) + x).to(dtype)
    inverse = tl.exp2(-0.5 * tl.log2(mean_square(x.to(tl.float32), SIZE, SIZE_TILE) + eps))
    weight = tl.load(weight_ptr + tl.program_id(1) * SIZE + column, mask=inside, other=1.0)
    tl.store(output_ptr + column, (x * inverse).to(dtype).to(tl.float32) * weight, mask=inside)
    if HAS_RESIDUAL:
        tl.store(residual_ptr + column, x, mask=inside)


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
    pair = tl.arange(0, HALF_TILE)[:, None]
    head = tl.arange(0, HEADS_TILE)[None, :]
    known = pair < HEAD_DIM // 2
    keep = known & (head < NUM_HEADS)
    cos = tl.load(cos_ptr + token * HEAD_DIM + pair, mask=known, other=1.0).to(tl.float32)
    sin = tl.load(sin_ptr + token * HEAD_DIM + HEAD_DIM // 2 + pair, mask=known, other=0.0)
    x_ptr += token * x_stride
    a = tl.load(x_ptr + head * HEAD_DIM + pair, mask=keep, other=0.0).to(tl.float32)
    b = tl.load(x_ptr + head * HEAD_DIM + pair + HEAD_DIM // 2, mask=keep, other=0.0)
    b, sin = b.to(tl.float32), sin.to(tl.float32)
    tl.store(x_ptr + head * HEAD_DIM + pair + HEAD_DIM // 2, a * sin + b * cos, mask=keep)
    tl.store(x_ptr + head * HEAD_DIM + pair, a * cos - b * sin, mask=keep)


@triton.jit
def silu_mul_kernel(output_ptr, gate_up_ptr, SIZE: tl.constexpr, TILE: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    gate_up_ptr += token * 2 * SIZE
    if TILE < PIECES:
        gate = tl.load(gate_up_ptr).to(tl.float32)
        tl.store(output_ptr + token, tl.load(gate_up_ptr + 1) * gate / (1.0 + tl.exp(-gate)))
        return
    for piece in tl.static_range(PIECES):
        begin = tl.program_id(1) * TILE + piece * (TILE // PIECES)
        column = begin + tl.arange(0, TILE // PIECES)
        gate = tl.load(gate_up_ptr + column, mask=column < SIZE, other=0.0).to(tl.float32)
        up = tl.load(gate_up_ptr + SIZE + column, mask=column < SIZE, other=0.0).to(tl.float32)
        down = 1.0 + tl.exp2(-LOG2_E * gate)
        tl.store(output_ptr + token * SIZE + column, gate * up / down, mask=column < SIZE)
