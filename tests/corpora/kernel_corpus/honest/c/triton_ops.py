"""Other right kernels: sums in place of tl.dot, one rank after another."""

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
        x = tl.load(
            x_ptr + row[None, :] * x_stride + column[:, None],
            mask=(place < count)[None, :] & (column < IN_SIZE)[:, None],
            other=0.0,
        )
        for r in range(0, RANK):
            a_ptr = lora_a_ptr + (matrix * RANK + r) * IN_SIZE + column
            a = tl.load(a_ptr, mask=column < IN_SIZE, other=0.0).to(tl.float32)
            total = tl.sum(a[:, None] * x.to(tl.float32), axis=0)
            acc = tl.where(rank[:, None] == r, acc + total[None, :], acc)
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
    column = begin + tl.arange(0, OUT_TILE)
    mask = (place < count)[:, None] & (column < end)[None, :]
    y = tl.load(y_ptr + row[:, None] * y_stride + column[None, :], mask=mask, other=0.0)
    acc = y.to(tl.float32)
    for r in range(0, RANK):
        h_ptr = hidden_ptr + (part.to(tl.int64) * total_tokens + row) * RANK + r
        h = tl.load(h_ptr, mask=place < count, other=0.0)
        b_ptr = lora_b_ptr + (slot.to(tl.int64) * RANK + r) * OUT_SIZE + column
        b = tl.load(b_ptr, mask=column < end, other=0.0).to(tl.float32)
        acc += h[:, None] * b[None, :]
    tl.store(y_ptr + row[:, None] * y_stride + column[None, :], acc, mask=mask)
