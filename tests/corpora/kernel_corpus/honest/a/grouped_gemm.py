"""An idle program leaves at once; pointers walk along the features."""

import triton
import triton.language as tl


@triton.jit
def grouped_gemm_kernel(
    output_ptr,
    x_ptr,
    weight_ptr,
    sorted_ids_ptr,
    expert_ids_ptr,
    num_pairs,
    x_stride,
    N: tl.constexpr,
    K: tl.constexpr,
    TOP_K: tl.constexpr,
    ROW_TILE: tl.constexpr,
    COLUMN_TILE: tl.constexpr,
    INNER_TILE: tl.constexpr,
):
    tile = tl.program_id(0).to(tl.int64)
    expert = tl.load(expert_ids_ptr + tile).to(tl.int64)
    if expert < 0:
        return
    pair = tl.load(sorted_ids_ptr + tile * ROW_TILE + tl.arange(0, ROW_TILE)).to(tl.int64)
    column = tl.program_id(1).to(tl.int64) * COLUMN_TILE + tl.arange(0, COLUMN_TILE)
    rows, columns = pair < num_pairs, column < N
    inner = tl.arange(0, INNER_TILE)
    x_at = x_ptr + (pair // TOP_K)[:, None] * x_stride + inner[None, :]
    weight_at = weight_ptr + expert * N * K + column[None, :] * K + inner[:, None]
    total = tl.zeros([ROW_TILE, COLUMN_TILE], tl.float32)
    for start in range(0, K, INNER_TILE):
        left = K - start
        x = tl.load(x_at, mask=rows[:, None] & (inner[None, :] < left), other=0.0)
        weight = tl.load(weight_at, mask=(inner[:, None] < left) & columns[None, :], other=0.0)
        total += tl.dot(x, weight, input_precision="ieee")
        x_at += INNER_TILE
        weight_at += INNER_TILE
    mask = rows[:, None] & columns[None, :]
    tl.store(output_ptr + pair[:, None] * N + column[None, :], total, mask=mask)
