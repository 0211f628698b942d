"""Where the pairs of tokens and experts lie for a kernel whose tiles of rows have one expert each.

experts of 10 pairs      3 0 3 3 0 0 3 3 0 8       tiles of 4 rows
sorted_ids   1  4  5  8 | 0  2  3  6 | 7  P  P  P | 9  P  P  P | P ...     P = 10: no pair
expert_ids       0      |     3      |     3      |     8      | -1
rows in all: 16, padding included
"""

from __future__ import annotations

import torch
from torch import Tensor

from mini_vllm.kernels.launch import next_power_of_2

MIN_DOT = 16
"""No side of a tile that `tl.dot` multiplies may be shorter."""
MOST_ROWS = 64


def moe_align_block_size(
    topk_ids: Tensor, block_size: int, num_experts: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Pairs of token and expert, sorted by expert and padded to whole tiles of `block_size` rows.

    `topk_ids` is `[T, k]`. Sizes do not depend on what is in it, and nothing is asked of the
    device, so that a CUDA graph can hold all of this. Pairs are sorted, without a loop over them
    and without a table of pairs by experts: a prompt has tens of thousands of pairs. There are as
    many tiles as the worst `topk_ids` of this shape needs: ceil((P + E * (block_size - 1)) /
    block_size) for P = T * k pairs, and never more than P.

    Returns:
        sorted_ids, int32, a whole number of tiles: numbers of pairs, those of an expert in their
        order, and P where a tile has no more. expert_ids, int32, one a tile; -1 for tiles behind
        the last. And how many rows there are, padding included: `[1]` int32.

    Source: vllm/model_executor/layers/fused_moe/moe_align_block_size.py#L11-L103
    (moe_align_block_size) @ v0.22.1. Difference: sorted_ids always fills its last tile, and the
    tiles behind the last say so.
    """
    # TODO 17.7
    raise NotImplementedError(
        "TODO 17.7: write moe_align_block_size in labs/17-models-and-experts/moe_layout.py"
        " (phase 17, 02-mini-build.md#task-7)"
    )


def rows_tile(num_pairs: int, num_experts: int) -> int:
    """Rows of a tile: what an expert has if all have as many, from 16 to 64."""
    return max(min(next_power_of_2(num_pairs // num_experts), MOST_ROWS), MIN_DOT)
