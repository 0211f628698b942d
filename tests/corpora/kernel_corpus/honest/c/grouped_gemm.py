"""The number of steps is counted down, and what is no pair reads the row of a pair."""

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
    tile, columns_tile = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    expert = tl.load(expert_ids_ptr + tile).to(tl.int64)
    is_busy = expert >= 0
    if is_busy:
        lane = tl.arange(0, ROW_TILE)
        listed = tl.load(sorted_ids_ptr + tile * ROW_TILE + lane).to(tl.int64)
        is_pair = listed < num_pairs
        pair = tl.where(is_pair, listed, 0)
        column = columns_tile * COLUMN_TILE + tl.arange(0, COLUMN_TILE)
        is_column = column < N
        x_rows = x_ptr + (pair // TOP_K * x_stride)[:, None]
        weight_rows = weight_ptr + ((expert * N + column) * K)[None, :]
        total = tl.zeros((ROW_TILE, COLUMN_TILE), dtype=tl.float32)
        for start in tl.range(0, K, INNER_TILE):
            inner = start + tl.arange(0, INNER_TILE)
            keep = inner < K
            x = tl.load(x_rows + inner[None, :], mask=is_pair[:, None] & keep[None, :], other=0)
            weight = tl.load(
                weight_rows + inner[:, None], mask=keep[:, None] & is_column[None, :], other=0
            )
            total = tl.dot(x, weight, total, input_precision="ieee")
        offsets = pair[:, None] * N + column[None, :]
        is_mine = is_pair[:, None] & is_column[None, :]
        tl.store(output_ptr + offsets, total.to(output_ptr.dtype.element_ty), mask=is_mine)
