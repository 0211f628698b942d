"""Other right kernels: programs without work return early, and A is read row by row, transposed."""

import triton
import triton.language as tl


@triton.jit
def lora_shrink_kernel(
    hidden_ptr, x_ptr, lora_a_ptr, order_ptr, lora_ids_ptr, num_tokens_ptr, starts_ptr,
    total_tokens, x_stride,
    IN_SIZE: tl.constexpr, RANK: tl.constexpr, ROW_TILE: tl.constexpr, RANK_TILE: tl.constexpr,
    IN_TILE: tl.constexpr,
):  # fmt: skip
    segment = tl.program_id(2)
    slot = tl.load(lora_ids_ptr + segment)
    if slot < 0:
        return
    count = tl.load(num_tokens_ptr + segment)
    first = tl.program_id(0) * ROW_TILE
    if first >= count:
        return
    place = first + tl.arange(0, ROW_TILE)
    row = tl.load(order_ptr + tl.load(starts_ptr + segment) + place, mask=place < count, other=0)
    row = row.to(tl.int64)
    rank = tl.arange(0, RANK_TILE)
    matrix = slot.to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    acc = tl.zeros([RANK_TILE, ROW_TILE], tl.float32)
    for begin in range(0, IN_SIZE, IN_TILE):
        column = begin + tl.arange(0, IN_TILE)
        a = tl.load(
            lora_a_ptr + (matrix * RANK + rank[:, None]) * IN_SIZE + column[None, :],
            mask=(rank < RANK)[:, None] & (column < IN_SIZE)[None, :],
            other=0.0,
        )
        x = tl.load(
            x_ptr + row[None, :] * x_stride + column[:, None],
            mask=(place < count)[None, :] & (column < IN_SIZE)[:, None],
            other=0.0,
        )
        acc = tl.dot(a, x, acc, input_precision="ieee")
    out = tl.program_id(1).to(tl.int64) * total_tokens + row
    tl.store(
        hidden_ptr + out[None, :] * RANK + rank[:, None],
        acc,
        mask=(rank < RANK)[:, None] & (place < count)[None, :],
    )


@triton.jit
def lora_expand_kernel(
    y_ptr, hidden_ptr, lora_b_ptr, slice_starts_ptr, order_ptr, lora_ids_ptr, num_tokens_ptr,
    starts_ptr, total_tokens, y_stride,
    OUT_SIZE: tl.constexpr, NUM_SLICES: tl.constexpr, RANK: tl.constexpr, ROW_TILE: tl.constexpr,
    RANK_TILE: tl.constexpr, OUT_TILE: tl.constexpr,
):  # fmt: skip
    segment = tl.program_id(2)
    slot = tl.load(lora_ids_ptr + segment)
    if slot < 0:
        return
    count = tl.load(num_tokens_ptr + segment)
    first = tl.program_id(0) * ROW_TILE
    if first >= count:
        return
    tiles = tl.num_programs(1) // NUM_SLICES
    part = tl.program_id(1) // tiles
    begin = tl.load(slice_starts_ptr + part) + (tl.program_id(1) - part * tiles) * OUT_TILE
    end = tl.load(slice_starts_ptr + part + 1)
    if begin >= end:
        return
    place = first + tl.arange(0, ROW_TILE)
    row = tl.load(order_ptr + tl.load(starts_ptr + segment) + place, mask=place < count, other=0)
    row = row.to(tl.int64)
    rank = tl.arange(0, RANK_TILE)
    column = begin + tl.arange(0, OUT_TILE)
    mask = (place < count)[:, None] & (column < end)[None, :]
    y = tl.load(y_ptr + row[:, None] * y_stride + column[None, :], mask=mask, other=0.0)
    h = tl.load(
        hidden_ptr + (part.to(tl.int64) * total_tokens + row[:, None]) * RANK + rank[None, :],
        mask=(place < count)[:, None] & (rank < RANK)[None, :],
        other=0.0,
    )
    b = tl.load(
        lora_b_ptr + (slot.to(tl.int64) * RANK + rank[:, None]) * OUT_SIZE + column[None, :],
        mask=(rank < RANK)[:, None] & (column < end)[None, :],
        other=0.0,
    )
    acc = tl.dot(h.to(b.dtype), b, y.to(tl.float32), input_precision="ieee")
    tl.store(y_ptr + row[:, None] * y_stride + column[None, :], acc, mask=mask)
