"""Columns times rows: the tile is computed and stored the other way round."""

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
    expert = tl.load(expert_ids_ptr + tl.program_id(0))
    if expert != -1:
        first = tl.program_id(0).to(tl.int64) * ROW_TILE
        pair = tl.load(sorted_ids_ptr + first + tl.arange(0, ROW_TILE))
        is_pair = pair < num_pairs
        row = (pair // TOP_K).to(tl.int64)
        column = tl.program_id(1).to(tl.int64) * COLUMN_TILE + tl.arange(0, COLUMN_TILE)
        own = weight_ptr + expert.to(tl.int64) * (N * K)
        total = tl.zeros([COLUMN_TILE, ROW_TILE], tl.float32)
        for step in range(tl.cdiv(K, INNER_TILE)):
            inner = step * INNER_TILE + tl.arange(0, INNER_TILE)
            weight = tl.load(
                own + column[:, None] * K + inner[None, :],
                mask=(column[:, None] < N) & (inner[None, :] < K),
                other=0.0,
            )
            x = tl.load(
                x_ptr + row[None, :] * x_stride + inner[:, None],
                mask=is_pair[None, :] & (inner[:, None] < K),
                other=0.0,
            )
            total = tl.dot(weight, x, acc=total, input_precision="ieee")
        place = output_ptr + pair.to(tl.int64)[None, :] * N + column[:, None]
        tl.store(place, total, mask=(column[:, None] < N) & is_pair[None, :])
