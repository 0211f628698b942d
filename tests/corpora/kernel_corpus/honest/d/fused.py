"""Another right way: a root and a division, both halves of a head in one store, two axes."""

import triton
import triton.language as tl


@triton.jit
def larger_square(a, b):
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
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    row = token * tl.num_programs(1) + head
    column = tl.arange(0, SIZE_TILE)[None, :]
    inside = column < SIZE
    numbers = tl.load(x_ptr + token * x_stride + head * SIZE + column, mask=inside, other=0.0)
    total = numbers.to(tl.float32)
    if HAS_RESIDUAL:
        place = residual_ptr + row * SIZE + column
        total += tl.load(place, mask=inside, other=0.0, eviction_policy="evict_first")
        tl.store(place, total, mask=inside)
    squares = tl.reduce(total * total, 1, larger_square)
    length = tl.sqrt_rn(squares / SIZE + eps)[:, None]
    weight = tl.load(weight_ptr + head * SIZE + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(output_ptr + row * SIZE + column, tl.div_rn(total, length) * weight, mask=inside)


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
    head = tl.arange(0, HEADS_TILE)[:, None]
    pair = tl.arange(0, HALF_TILE)[None, :]
    half: tl.constexpr = HEAD_DIM // 2
    in_tile = (head < NUM_HEADS) & (pair < half)
    angle = token * HEAD_DIM + pair
    cos = tl.load(cos_ptr + angle, mask=pair < half, other=0.0).to(tl.float32)
    minus_sin = tl.load(sin_ptr + angle, mask=pair < half, other=0.0).to(tl.float32)
    start = x_ptr + token * x_stride
    first = tl.load(start + head * HEAD_DIM + pair, mask=in_tile, other=0.0).to(tl.float32)
    second = tl.load(start + head * HEAD_DIM + half + pair, mask=in_tile, other=0.0)
    turned = tl.join(
        tl.fma(second.to(tl.float32), minus_sin, first * cos),
        tl.fma(first, -minus_sin, second.to(tl.float32) * cos),
    )
    both = tl.reshape(tl.permute(turned, (0, 2, 1)), (HEADS_TILE, 2 * HALF_TILE))
    column = tl.arange(0, 2 * HALF_TILE)[None, :]
    feature = column // HALF_TILE * half + column % HALF_TILE
    tl.debug_barrier()  # the store's lanes are others than those of the loads
    keep = (head < NUM_HEADS) & (column % HALF_TILE < half)
    tl.store(start + head * HEAD_DIM + feature, both, mask=keep)


@triton.jit
def silu_mul_kernel(output_ptr, gate_up_ptr, SIZE: tl.constexpr, TILE: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    line = tl.arange(0, TILE)[:, None]
    which = tl.arange(0, 2)[None, :]
    column = tl.program_id(1) * TILE + line
    both = tl.load(
        gate_up_ptr + token * (2 * SIZE) + which * SIZE + column, mask=column < SIZE, other=0.0
    )
    gate, up = tl.split(both.to(tl.float32))
    flat = tl.program_id(1) * TILE + tl.arange(0, TILE)
    bent = tl.where(gate > 0.0, 1.0, tl.exp(gate)) / (1.0 + tl.exp(-tl.abs(gate)))
    tl.store(output_ptr + token * SIZE + flat, up * gate * bent, mask=flat < SIZE)
