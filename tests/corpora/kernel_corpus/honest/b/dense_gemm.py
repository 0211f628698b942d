"""Rows times tokens: the tile is computed and stored the other way round."""

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
    token = tl.program_id(0).to(tl.int64) * TOKEN_TILE + tl.arange(0, TOKEN_TILE)[None, :]
    row = tl.program_id(1).to(tl.int64) * ROW_TILE + tl.arange(0, ROW_TILE)[:, None]
    total = tl.zeros([ROW_TILE, TOKEN_TILE], tl.float32)
    for step in range(tl.cdiv(K, COLUMN_TILE)):
        column = step * COLUMN_TILE + tl.arange(0, COLUMN_TILE)
        weight = tl.load(
            weight_ptr + row * K + column[None, :],
            mask=(row < N) & (column[None, :] < K),
            other=0.0,
        )
        x = tl.load(
            x_ptr + token * x_stride + column[:, None],
            mask=(token < num_tokens) & (column[:, None] < K),
            other=0.0,
        )
        total = tl.dot(weight, x, acc=total, input_precision="ieee")
    tl.store(output_ptr + token * N + row, total, mask=(token < num_tokens) & (row < N))
