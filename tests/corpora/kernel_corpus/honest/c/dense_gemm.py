"""Whole tiles of columns first, without a mask on them, and what is left behind them."""

import triton
import triton.language as tl


@triton.jit
def gemm_kernel(
    output_ptr,
    x_ptr,
    weight_ptr,
    num_tokens,
    x_stride,
    N: tl.constexpr,
    K: tl.constexpr,
    TOKEN_TILE: tl.constexpr,
    ROW_TILE: tl.constexpr,
    COLUMN_TILE: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64) * TOKEN_TILE + tl.arange(0, TOKEN_TILE)
    row = tl.program_id(1).to(tl.int64) * ROW_TILE + tl.arange(0, ROW_TILE)
    is_token, is_row = token < num_tokens, row < N
    x_rows = x_ptr + (token * x_stride)[:, None]
    weight_rows = weight_ptr + (row * K)[None, :]
    lane = tl.arange(0, COLUMN_TILE)
    whole = K // COLUMN_TILE * COLUMN_TILE
    total = tl.zeros((TOKEN_TILE, ROW_TILE), dtype=tl.float32)
    for start in range(0, whole, COLUMN_TILE):
        x = tl.load(x_rows + (start + lane)[None, :], mask=is_token[:, None], other=0)
        weight = tl.load(weight_rows + (start + lane)[:, None], mask=is_row[None, :], other=0)
        total = tl.dot(x, weight, total, input_precision="ieee")
    if whole < K:
        last = whole + lane
        inside = last < K
        x = tl.load(x_rows + last[None, :], mask=is_token[:, None] & inside[None, :], other=0)
        weight = tl.load(
            weight_rows + last[:, None], mask=inside[:, None] & is_row[None, :], other=0
        )
        total = tl.dot(x, weight, total, input_precision="ieee")
    place = output_ptr + token[:, None] * N + row[None, :]
    mask = is_token[:, None] & is_row[None, :]
    tl.store(place, total.to(output_ptr.dtype.element_ty), mask=mask)
