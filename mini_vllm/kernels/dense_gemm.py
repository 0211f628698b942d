"""A matrix product in tiles, of numbers as they are. Only the kernel lives here:
`kernels/products.py` says how it is launched.

    output[token, row] = sum over columns of x[token, column] * weight[row, column]

             weight^T  [K, N]
               ┌──────┐
               │ ROW_ │
    x [T, K]   │ TILE │
    ┌──────────┼──────┤
    │ TOKEN_   │ one  │   a program goes along K, tile by tile, and reads each of its numbers once;
    │ TILE     │ tile │   each serves a whole side of the tile of results
    └──────────┴──────┘
"""

import triton
import triton.language as tl


@triton.jit
def gemm_kernel(
    output_ptr,  # [T, N]
    x_ptr,  # [T, K], tokens `x_stride` apart
    weight_ptr,  # [N, K]
    num_tokens,
    x_stride,
    N: tl.constexpr,
    K: tl.constexpr,
    TOKEN_TILE: tl.constexpr,
    ROW_TILE: tl.constexpr,
    COLUMN_TILE: tl.constexpr,
):
    """A tile of x @ weight^T. Grid: (tiles of T, of N).

    The sum is in float32, whatever x is, and rounded once, at the end.
    Source: vllm/model_executor/layers/batch_invariant.py#L41-L129 (matmul_kernel_persistent)
    @ v0.22.1.
    """
    token = tl.program_id(0).to(tl.int64) * TOKEN_TILE + tl.arange(0, TOKEN_TILE)
    row = tl.program_id(1).to(tl.int64) * ROW_TILE + tl.arange(0, ROW_TILE)
    is_token, is_row = token < num_tokens, row < N
    total = tl.zeros([TOKEN_TILE, ROW_TILE], tl.float32)
    for start in range(0, K, COLUMN_TILE):
        column = start + tl.arange(0, COLUMN_TILE)
        inside = column < K
        x_mask, weight_mask = is_token[:, None] & inside[None, :], is_row[:, None] & inside[None, :]
        x = tl.load(x_ptr + token[:, None] * x_stride + column[None, :], mask=x_mask, other=0.0)
        weight_at = weight_ptr + row[:, None] * K + column[None, :]
        weight = tl.load(weight_at, mask=weight_mask, other=0.0)
        total = tl.dot(x, tl.trans(weight), acc=total, input_precision="ieee")
    output_at = output_ptr + token[:, None] * N + row[None, :]
    tl.store(output_at, total, mask=is_token[:, None] & is_row[None, :])
