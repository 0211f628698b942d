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
    expert = tl.load(expert_ids_ptr + tl.program_id(0)).to(tl.int64)
    if expert >= 0:
        place = tl.program_id(0).to(tl.int64) * ROW_TILE + tl.arange(0, ROW_TILE)
        pair = tl.load(sorted_ids_ptr + place).to(tl.int64)
        column = tl.program_id(1).to(tl.int64) * COLUMN_TILE + tl.arange(0, COLUMN_TILE)
        is_pair, is_column = pair < num_pairs, column < N
        x_row_ptr = x_ptr + pair[:, None] // TOP_K * x_stride
        weight_row_ptr = weight_ptr + (expert * N + column[None, :]) * K
        total = tl.zeros([ROW_TILE, COLUMN_TILE], tl.float32)
        for start in range(0, K, INNER_TILE):
            inner = start + tl.arange(0, INNER_TILE)
            inside = inner < K
            x_mask = is_pair[:, None] & inside[None, :]
            x = tl.load(x_row_ptr + inner[None, :], mask=x_mask, other=0.0)
            weight_mask = inside[:, None] & is_column[None, :]
            weight = tl.load(weight_row_ptr + inner[:, None], mask=weight_mask, other=0.0)
            total = tl.dot(x, weight, acc=total, input_precision="ieee")
        output_at = output_ptr + pair[:, None] * N + column[None, :]
        tl.store(output_at, total, mask=is_pair[:, None] & is_column[None, :])
