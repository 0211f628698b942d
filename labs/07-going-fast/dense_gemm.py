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
    # TODO 07.9
    tl.static_assert(
        False,
        "TODO 07.9: write gemm_kernel in labs/07-going-fast/dense_gemm.py"
        " (phase 07, 02-mini-build.md#task-9)",
    )
