"""Other right kernels: the columns of x in the inner axis of a tile, and B in single precision."""

import triton
import triton.language as tl


@triton.jit
def rows_of(order_ptr, starts_ptr, segment, place, count):
    start = tl.load(starts_ptr + segment)
    return tl.load(order_ptr + start + place, mask=place < count, other=0).to(tl.int64)


@triton.jit
def lora_shrink_kernel(
    hidden_ptr, x_ptr, lora_a_ptr, order_ptr, lora_ids_ptr, num_tokens_ptr, starts_ptr,
    total_tokens, x_stride,
    IN_SIZE: tl.constexpr, RANK: tl.constexpr, ROW_TILE: tl.constexpr, RANK_TILE: tl.constexpr,
    IN_TILE: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(1).to(tl.int64)
    segment = tl.program_id(2)
    slot = tl.load(lora_ids_ptr + segment).to(tl.int64)
    count = tl.load(num_tokens_ptr + segment)
    place = tl.program_id(0) * ROW_TILE + tl.arange(0, ROW_TILE)
    if (slot >= 0) & (tl.program_id(0) * ROW_TILE < count):
        row = rows_of(order_ptr, starts_ptr, segment, place, count)
        rank = tl.arange(0, RANK_TILE)
        a_ptr = lora_a_ptr + (slot * tl.num_programs(1) + part) * RANK * IN_SIZE
        acc = tl.zeros([ROW_TILE, RANK_TILE], tl.float32)
        column = tl.arange(0, IN_TILE)
        while tl.max(column, axis=0) < IN_SIZE + IN_TILE - 1:
            x = tl.load(
                x_ptr + row[:, None] * x_stride + column[None, :],
                mask=(place < count)[:, None] & (column < IN_SIZE)[None, :],
                other=0.0,
            )
            a = tl.load(
                a_ptr + rank[:, None] * IN_SIZE + column[None, :],
                mask=(rank < RANK)[:, None] & (column < IN_SIZE)[None, :],
                other=0.0,
            )
            acc += tl.dot(x, tl.trans(a), input_precision="ieee")
            column += IN_TILE
        target = hidden_ptr + (part * total_tokens + row[:, None]) * RANK + rank[None, :]
        tl.store(target, acc, mask=(place < count)[:, None] & (rank < RANK)[None, :])


@triton.jit
def lora_expand_kernel(
    y_ptr, hidden_ptr, lora_b_ptr, slice_starts_ptr, order_ptr, lora_ids_ptr, num_tokens_ptr,
    starts_ptr, total_tokens, y_stride,
    OUT_SIZE: tl.constexpr, NUM_SLICES: tl.constexpr, RANK: tl.constexpr, ROW_TILE: tl.constexpr,
    RANK_TILE: tl.constexpr, OUT_TILE: tl.constexpr,
):  # fmt: skip
    segment = tl.program_id(2)
    tiles = tl.cdiv(tl.num_programs(1), NUM_SLICES)
    part = (tl.program_id(1) // tiles).to(tl.int64)
    slot = tl.load(lora_ids_ptr + segment).to(tl.int64)
    count = tl.load(num_tokens_ptr + segment)
    place = tl.program_id(0) * ROW_TILE + tl.arange(0, ROW_TILE)
    end = tl.load(slice_starts_ptr + part + 1)
    column = tl.load(slice_starts_ptr + part) + tl.program_id(1) % tiles * OUT_TILE
    column += tl.arange(0, OUT_TILE)
    nothing = (slot < 0) | (tl.program_id(0) * ROW_TILE >= count) | (tl.min(column, axis=0) >= end)
    if nothing:
        return
    row = rows_of(order_ptr, starts_ptr, segment, place, count)
    rank = tl.arange(0, RANK_TILE)
    h = tl.load(
        hidden_ptr + (part * total_tokens + row[:, None]) * RANK + rank[None, :],
        mask=(place < count)[:, None] & (rank < RANK)[None, :],
        other=0.0,
    )
    b = tl.load(
        lora_b_ptr + slot * (RANK * OUT_SIZE) + rank[:, None] * OUT_SIZE + column[None, :],
        mask=(rank < RANK)[:, None] & (column < end)[None, :],
        other=0.0,
    )
    place_of_y = y_ptr + row[:, None] * y_stride + column[None, :]
    keep = (place < count)[:, None] & (column < end)[None, :]
    total = tl.dot(h, b.to(tl.float32), input_precision="ieee")
    total += tl.load(place_of_y, mask=keep, other=0.0).to(tl.float32)
    tl.store(place_of_y, total, mask=keep)
