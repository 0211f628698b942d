"""The products of a layer's experts on a GPU, as one launch. Only the kernel lives here:
`kernels/experts.py` says how it is launched.

    output[pair] = x[pair // TOP_K] weight[expert of the pair]^T     a pair: a token and an expert

Pairs are sorted by expert, and each expert's are padded to whole tiles of rows. So a tile of rows
has one expert, and a program needs no search to find its weight:

    sorted_ids    2  5  9  P | 0  3  4  7 | 8  P  P  P | ...      P = number of pairs: no pair
    expert_ids        1      |     4      |     6      |  -1      -1: an idle tile
"""

import triton
import triton.language as tl


@triton.jit
def grouped_gemm_kernel(
    output_ptr,  # [P, N], pairs in their own order
    x_ptr,  # [P / TOP_K, K], rows `x_stride` apart
    weight_ptr,  # [E, N, K]
    sorted_ids_ptr,  # [tiles * ROW_TILE] int32, pairs sorted by expert; P or more: none
    expert_ids_ptr,  # [tiles] int32, the expert of each tile of rows; -1: idle
    num_pairs,  # P
    x_stride,
    N: tl.constexpr,
    K: tl.constexpr,
    TOP_K: tl.constexpr,
    ROW_TILE: tl.constexpr,
    COLUMN_TILE: tl.constexpr,
    INNER_TILE: tl.constexpr,
):
    """A tile of rows times a tile of its expert's columns. Grid: (tiles of rows, of N).

    Row i of tile t is pair `sorted_ids[t * ROW_TILE + i]`; it is written where the pair's place is,
    and not where it was sorted to. The sum is in float32. What `sorted_ids` has for a tile of
    none is not read.

    Source: vllm/model_executor/layers/fused_moe/fused_moe.py#L294-L557 (fused_moe_kernel)
    @ v0.22.1.
    """
    # TODO 17.8
    tl.static_assert(
        False,
        "TODO 17.8: write grouped_gemm_kernel in labs/17-models-and-experts/grouped_gemm.py"
        " (phase 17, 02-mini-build.md#task-8)",
    )
