"""Adapters on a GPU: two kernels for all adapters of a step. `kernels/lora.py` launches them.

    lora_shrink_kernel   h = A x     [T, in] -> [n, T, R], float32
    lora_expand_kernel   y += B h    [n, T, R] -> [T, out], in place

A row of x belongs to one adapter, or to none. Rows are not moved: `order` lists them segment by
segment, and a program works on a tile of one segment. It does nothing if its segment is that of
the base (-1), or is shorter than where its tile begins::

    order    2  6 | 0  1  7 | 3  4  5         segment 1 begins at starts[1] = 2, has 3 rows,
    lora_ids  -1       0         1            belongs to slot lora_ids[1] = 0

Source: vllm/lora/ops/triton_ops/kernel_utils.py#L110-L340 (do_expand_kernel, do_shrink_kernel)
@ v0.22.1
"""

import triton
import triton.language as tl


@triton.jit
def lora_shrink_kernel(
    hidden_ptr,  # [n, T, RANK] float32
    x_ptr,  # [T, IN_SIZE], rows `x_stride` apart
    lora_a_ptr,  # [S, n, RANK, IN_SIZE]
    order_ptr,  # [T] int32, rows of x segment by segment
    lora_ids_ptr,  # [segments] int32, slot of each; -1 = none
    num_tokens_ptr,  # [segments] int32, rows in each
    starts_ptr,  # [segments + 1] int32, where each begins in `order`
    total_tokens,  # T
    x_stride,
    IN_SIZE: tl.constexpr,
    RANK: tl.constexpr,
    ROW_TILE: tl.constexpr,
    RANK_TILE: tl.constexpr,
    IN_TILE: tl.constexpr,
):
    """h[slice, row] = A[slot, slice] x[row] for one tile of one segment.

    Grid: (tiles of T, n, segments). Row i of the tile is row `order[starts[segment] + i]` of x, if
    the segment has so many. The product is summed in float32 over tiles of IN_SIZE and written to
    the same row of `hidden`; rows of the base are not written. A slot's number times its size
    exceeds 32 bits soon.

    Source: vllm/lora/ops/triton_ops/lora_shrink_op.py#L23-L136 (_lora_shrink_kernel) @ v0.22.1.
    """
    segment = tl.program_id(2)
    slot = tl.load(lora_ids_ptr + segment).to(tl.int64)
    num_rows = tl.load(num_tokens_ptr + segment)
    first = tl.program_id(0) * ROW_TILE
    if (slot >= 0) & (first < num_rows):
        slice_id = tl.program_id(1).to(tl.int64)
        num_slices = tl.num_programs(1)
        position = first + tl.arange(0, ROW_TILE)
        in_segment = position < num_rows
        start = tl.load(starts_ptr + segment)
        row = tl.load(order_ptr + start + position, mask=in_segment, other=0).to(tl.int64)
        rank = tl.arange(0, RANK_TILE)
        in_rank = rank < RANK
        x_row_ptr = x_ptr + row[:, None] * x_stride
        a_row_ptr = lora_a_ptr + ((slot * num_slices + slice_id) * RANK + rank[None, :]) * IN_SIZE
        acc = tl.zeros([ROW_TILE, RANK_TILE], tl.float32)
        for begin in range(0, IN_SIZE, IN_TILE):
            column = begin + tl.arange(0, IN_TILE)
            inside = column < IN_SIZE
            x_mask = in_segment[:, None] & inside[None, :]
            x = tl.load(x_row_ptr + column[None, :], mask=x_mask, other=0.0)
            a_mask = inside[:, None] & in_rank[None, :]
            a = tl.load(a_row_ptr + column[:, None], mask=a_mask, other=0.0)
            acc = tl.dot(x, a.to(x.dtype), acc, input_precision="ieee")
        out_ptr = hidden_ptr + (slice_id * total_tokens + row[:, None]) * RANK + rank[None, :]
        tl.store(out_ptr, acc, mask=in_segment[:, None] & in_rank[None, :])


@triton.jit
def lora_expand_kernel(
    y_ptr,  # [T, OUT_SIZE], rows `y_stride` apart; added to
    hidden_ptr,  # [n, T, RANK] float32
    lora_b_ptr,  # [S, RANK, OUT_SIZE]
    slice_starts_ptr,  # [n + 1] int32, where each slice's columns begin
    order_ptr,  # [T] int32, rows of y segment by segment
    lora_ids_ptr,  # [segments] int32, slot of each; -1 = none
    num_tokens_ptr,  # [segments] int32, rows in each
    starts_ptr,  # [segments + 1] int32, where each begins in `order`
    total_tokens,  # T
    y_stride,
    OUT_SIZE: tl.constexpr,
    NUM_SLICES: tl.constexpr,
    RANK: tl.constexpr,
    ROW_TILE: tl.constexpr,
    RANK_TILE: tl.constexpr,
    OUT_TILE: tl.constexpr,
):
    """y[row, columns] += h[slice, row] B[slot][:, columns] for one tile of one segment.

    Grid: (tiles of T, n * tiles of the widest slice, segments). Tiles of a slice are numbered one
    after another; one that begins behind its slice's last column has nothing to do. Rows of the
    base are neither read nor written. h is rounded to the dtype of B, the product is summed in
    float32, and y is rounded once.

    Source: vllm/lora/ops/triton_ops/lora_expand_op.py#L23-L131 (_lora_expand_kernel) @ v0.22.1.
    """
    segment = tl.program_id(2)
    slot = tl.load(lora_ids_ptr + segment).to(tl.int64)
    num_rows = tl.load(num_tokens_ptr + segment)
    first = tl.program_id(0) * ROW_TILE
    tiles_per_slice = tl.num_programs(1) // NUM_SLICES
    slice_id = tl.program_id(1) // tiles_per_slice
    begin = tl.load(slice_starts_ptr + slice_id) + tl.program_id(1) % tiles_per_slice * OUT_TILE
    end = tl.load(slice_starts_ptr + slice_id + 1)
    if (slot >= 0) & (first < num_rows) & (begin < end):
        position = first + tl.arange(0, ROW_TILE)
        in_segment = position < num_rows
        start = tl.load(starts_ptr + segment)
        row = tl.load(order_ptr + start + position, mask=in_segment, other=0).to(tl.int64)
        rank = tl.arange(0, RANK_TILE)
        in_rank = rank < RANK
        column = begin + tl.arange(0, OUT_TILE)
        inside = column < end
        h_offsets = (slice_id * total_tokens + row[:, None]) * RANK + rank[None, :]
        h = tl.load(hidden_ptr + h_offsets, mask=in_segment[:, None] & in_rank[None, :], other=0.0)
        b_offsets = (slot * RANK + rank[:, None]) * OUT_SIZE + column[None, :]
        b = tl.load(lora_b_ptr + b_offsets, mask=in_rank[:, None] & inside[None, :], other=0.0)
        delta = tl.dot(h.to(b.dtype), b, input_precision="ieee")
        y_offsets = row[:, None] * y_stride + column[None, :]
        mask = in_segment[:, None] & inside[None, :]
        y = tl.load(y_ptr + y_offsets, mask=mask, other=0.0)
        tl.store(y_ptr + y_offsets, y.to(tl.float32) + delta, mask=mask)
