"""Pointers walk along the columns; what is left is counted down."""

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
    column = tl.arange(0, COLUMN_TILE)
    x_at = x_ptr + token[:, None] * x_stride + column[None, :]
    weight_at = weight_ptr + row[None, :] * K + column[:, None]
    tokens, rows = (token < num_tokens)[:, None], (row < N)[None, :]
    total = tl.zeros([TOKEN_TILE, ROW_TILE], tl.float32)
    for start in range(0, K, COLUMN_TILE):
        left = K - start
        x = tl.load(x_at, mask=tokens & (column[None, :] < left), other=0.0)
        weight = tl.load(weight_at, mask=rows & (column[:, None] < left), other=0.0)
        total += tl.dot(x, weight, input_precision="ieee")
        x_at += COLUMN_TILE
        weight_at += COLUMN_TILE
    tl.store(output_ptr + token[:, None] * N + row[None, :], total, mask=tokens & rows)
