"""Another right way: methods of tiles, pairs that are interleaved and split again, and a loop over
heads."""

import triton
import triton.language as tl


@triton.jit
def sum_of_squares(left, right):
    return left + right


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
    token, head = tl.program_id(0), tl.program_id(1)
    column = tl.arange(0, SIZE_TILE).to(tl.int64)
    at_x = token.to(tl.int64) * x_stride + head * SIZE + column
    at = (token.to(tl.int64) * tl.num_programs(1) + head) * SIZE + column
    x = tl.load(x_ptr + at_x, column < SIZE, 0)
    if HAS_RESIDUAL:
        residual = tl.load(residual_ptr + at, column < SIZE, 0)
        total = tl.fma(residual.to(tl.float32), 1.0, x.to(tl.float32))
        x = total.to(x_ptr.dtype.element_ty)
        tl.store(residual_ptr + at, x, column < SIZE)
    wide = x.to(tl.float32)
    mean = tl.reduce(wide * wide, 0, sum_of_squares) / SIZE
    inverse = (mean + eps).rsqrt()
    weight = tl.load(weight_ptr + head * SIZE + column, column < SIZE, 0).to(tl.float32)
    rounded = (wide * inverse).to(x_ptr.dtype.element_ty).to(tl.float32)
    tl.store(output_ptr + at, rounded * weight, column < SIZE)


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
    pair = tl.arange(0, HALF_TILE)
    half: tl.constexpr = HEAD_DIM // 2
    known = pair < half
    cos = tl.load(cos_ptr + token * HEAD_DIM + pair, known, 0.0).to(tl.float32)
    sin = tl.load(sin_ptr + token * HEAD_DIM + half + pair, known, 0.0).to(tl.float32)
    second = tl.join(pair, pair + half)
    for head in range(NUM_HEADS):
        row = x_ptr + token * x_stride + head * HEAD_DIM
        both = tl.load(row + second, known[:, None], 0.0).to(tl.float32)
        a, b = both.split()
        turned = tl.join(a * cos - b * sin, a * sin + b * cos)
        tl.store(row + second, turned, known[:, None])


@triton.jit
def silu_mul_kernel(output_ptr, gate_up_ptr, SIZE: tl.constexpr, TILE: tl.constexpr):
    token, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    begin = tile * TILE
    while begin < tl.minimum(tile * TILE + TILE, SIZE):
        PIECE: tl.constexpr = TILE // 4 if TILE > 4 else TILE
        column = begin + tl.arange(0, PIECE)
        gate = tl.load(gate_up_ptr + token * (2 * SIZE) + column, column < SIZE, 0.0)
        up = tl.load(gate_up_ptr + token * (2 * SIZE) + SIZE + column, column < SIZE, 0.0)
        wide = gate.to(tl.float32)
        result = wide * wide.sigmoid() * up.to(tl.float32)
        tl.store(output_ptr + token * SIZE + column, result, column < SIZE)
        begin += PIECE
