"""Another right way: rows in four parts, heads in fours, a sigmoid in two forms, and a way of its
own for rows that fill their tile."""

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
    FULL: tl.constexpr = SIZE == SIZE_TILE
    PARTS: tl.constexpr = 4 if SIZE_TILE >= 16 else 1
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    feature = tl.reshape(tl.arange(0, SIZE_TILE), (PARTS, SIZE_TILE // PARTS))
    at = x_ptr + token * x_stride + head * SIZE + feature
    row = (token * tl.num_programs(1) + head) * SIZE
    if FULL:
        x = tl.load(at)
    else:
        x = tl.load(at, mask=feature < SIZE, other=0.0)
    if HAS_RESIDUAL:
        if FULL:
            x = (x.to(tl.float32) + tl.load(residual_ptr + row + feature).to(tl.float32)).to(
                x.dtype
            )
            tl.store(residual_ptr + row + feature, x)
        else:
            old = tl.load(residual_ptr + row + feature, mask=feature < SIZE, other=0.0)
            x = (x.to(tl.float32) + old.to(tl.float32)).to(x.dtype)
            tl.store(residual_ptr + row + feature, x, mask=feature < SIZE)
    wide = x.to(tl.float32)
    parts = tl.sum(wide * wide * (1.0 / SIZE), axis=1)
    factor = 1.0 / tl.sqrt(tl.sum(parts, axis=0) + eps)
    weight = tl.load(weight_ptr + head * SIZE + feature, mask=feature < SIZE, other=0.0)
    answer = wide * factor * weight.to(tl.float32)
    tl.store(output_ptr + row + feature, answer, mask=feature < SIZE)


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
    pair = tl.arange(0, HALF_TILE)[None, :]
    cos = tl.load(cos_ptr + token * HEAD_DIM + pair, mask=pair < HALF, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + token * HEAD_DIM + HALF + pair, mask=pair < HALF, other=0.0).to(
        tl.float32
    )
    STEP: tl.constexpr = 4 if HEADS_TILE > 4 else HEADS_TILE
    for begin in range(0, NUM_HEADS, STEP):
        head = begin + tl.arange(0, STEP)[:, None]
        mask = (head < NUM_HEADS) & (pair < HALF)
        left_ptr = x_ptr + token * x_stride + head * HEAD_DIM + pair
        left = tl.load(left_ptr, mask=mask, other=0.0).to(tl.float32)
        right = tl.load(left_ptr + HALF, mask=mask, other=0.0).to(tl.float32)
        tl.store(left_ptr + HALF, (left * sin + right * cos).to(x_ptr.dtype.element_ty), mask=mask)
        tl.store(left_ptr, (left * cos - right * sin).to(x_ptr.dtype.element_ty), mask=mask)


@triton.jit
def silu_mul_kernel(
    output_ptr,
    gate_up_ptr,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
):
    FULL: tl.constexpr = SIZE % TILE == 0
    token = tl.program_id(0).to(tl.int64)
    feature = tl.program_id(1) * TILE + tl.arange(0, TILE)
    gate_ptr = gate_up_ptr + 2 * token * SIZE
    if FULL:
        gate, up = tl.load(gate_ptr + feature), tl.load(gate_ptr + SIZE + feature)
        gate = gate.to(tl.float32)
        tl.store(output_ptr + token * SIZE + feature, up.to(tl.float32) * (gate * tl.sigmoid(gate)))
    else:
        mask = feature < SIZE
        gate = tl.load(gate_ptr + feature, mask).to(tl.float32)
        up = tl.load(gate_ptr + SIZE + feature, mask).to(tl.float32)
        answer = up * tl.fdiv(gate, 1.0 + tl.exp2(gate * -1.4426950408889634))
        tl.store(output_ptr + token * SIZE + feature, answer, mask)
