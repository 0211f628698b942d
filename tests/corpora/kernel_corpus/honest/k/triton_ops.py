"""Other right kernels: segments by where they end, products in halves of the input, one slice of
ranks per step, and B h turned round."""

import triton
import triton.language as tl


@triton.jit
def lora_shrink_kernel(
    hidden_ptr,
    x_ptr,
    lora_a_ptr,
    order_ptr,
    lora_ids_ptr,
    num_tokens_ptr,
    starts_ptr,
    total_tokens,
    x_stride,
    IN_SIZE: tl.constexpr,
    RANK: tl.constexpr,
    ROW_TILE: tl.constexpr,
    RANK_TILE: tl.constexpr,
    IN_TILE: tl.constexpr,
):
    """Two sums, of even and of odd tiles; tiles of rows taken by a stride over the grid."""
    segment = tl.program_id(2)
    which = tl.program_id(1).to(tl.int64)
    slot = tl.load(lora_ids_ptr + segment).to(tl.int64)
    if slot < 0:
        return
    begin = tl.load(starts_ptr + segment)
    end = begin + tl.load(num_tokens_ptr + segment)
    rank = tl.arange(0, RANK_TILE)
    a_ptr = lora_a_ptr + (slot * tl.num_programs(1) + which) * RANK * IN_SIZE
    for first in range(begin + tl.program_id(0) * ROW_TILE, end, tl.num_programs(0) * ROW_TILE):
        place = first + tl.arange(0, ROW_TILE)
        row = tl.load(order_ptr + place, mask=place < end, other=0).to(tl.int64)
        even = tl.zeros([ROW_TILE, RANK_TILE], tl.float32)
        odd = tl.zeros([ROW_TILE, RANK_TILE], tl.float32)
        for k in range(0, IN_SIZE, 2 * IN_TILE):
            for turn in tl.static_range(2):
                column = k + turn * IN_TILE + tl.arange(0, IN_TILE)
                x = tl.load(
                    x_ptr + row[:, None] * x_stride + column[None, :],
                    mask=(place < end)[:, None] & (column < IN_SIZE)[None, :],
                    other=0.0,
                )
                a = tl.load(
                    a_ptr + rank[:, None] * IN_SIZE + column[None, :],
                    mask=(rank < RANK)[:, None] & (column < IN_SIZE)[None, :],
                    other=0.0,
                )
                if turn == 0:
                    even = tl.dot(x, a.T, even, input_precision="ieee")
                else:
                    odd = tl.dot(x, a.T, odd, input_precision="ieee")
        to = hidden_ptr + (which * total_tokens + row)[:, None] * RANK + rank[None, :]
        tl.store(to, even + odd, mask=(place < end)[:, None] & (rank < RANK)[None, :])


@triton.jit
def lora_expand_kernel(
    y_ptr,
    hidden_ptr,
    lora_b_ptr,
    slice_starts_ptr,
    order_ptr,
    lora_ids_ptr,
    num_tokens_ptr,
    starts_ptr,
    total_tokens,
    y_stride,
    OUT_SIZE: tl.constexpr,
    NUM_SLICES: tl.constexpr,
    RANK: tl.constexpr,
    ROW_TILE: tl.constexpr,
    RANK_TILE: tl.constexpr,
    OUT_TILE: tl.constexpr,
):
    """Columns down, rows across: (B^T h^T), with y in the sum from the start."""
    slot = tl.load(lora_ids_ptr + tl.program_id(2)).to(tl.int64)
    count = tl.load(num_tokens_ptr + tl.program_id(2))
    tiles = tl.num_programs(1) // NUM_SLICES
    which = tl.program_id(1) // tiles
    left = tl.load(slice_starts_ptr + which)
    right = tl.load(slice_starts_ptr + which + 1)
    begin = left + (tl.program_id(1) - which * tiles) * OUT_TILE
    if (slot < 0) | (tl.program_id(0) * ROW_TILE >= count) | (begin >= right):
        return
    column = begin + tl.arange(0, OUT_TILE)
    place = tl.program_id(0) * ROW_TILE + tl.arange(0, ROW_TILE)
    mine = place < count
    wanted = column < right
    order = order_ptr + tl.load(starts_ptr + tl.program_id(2))
    row = tl.load(order + place, mask=mine, other=0).to(tl.int64)
    rank = tl.arange(0, RANK_TILE)
    known = rank < RANK
    h_at = hidden_ptr + (which.to(tl.int64) * total_tokens + row[None, :]) * RANK + rank[:, None]
    h = tl.load(h_at, mask=mine[None, :] & known[:, None], other=0.0)
    b_at = lora_b_ptr + (slot * RANK + rank[None, :]) * OUT_SIZE + column[:, None]
    b = tl.load(b_at, mask=wanted[:, None] & known[None, :], other=0.0)
    y_at = y_ptr + row[None, :] * y_stride + column[:, None]
    both = wanted[:, None] & mine[None, :]
    y = tl.load(y_at, mask=both, other=0.0).to(tl.float32)
    tl.store(y_at, tl.dot(b, h.to(b.dtype), acc=y, input_precision="ieee"), mask=both)
