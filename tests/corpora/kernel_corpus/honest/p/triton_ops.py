"""Everything a program needs to know about its segment comes from one helper."""

import triton
import triton.language as tl


@triton.jit
def my_rows(order_ptr, lora_ids_ptr, num_tokens_ptr, starts_ptr, segment, ROW_TILE: tl.constexpr):
    places = tl.program_id(0) * ROW_TILE + tl.arange(0, ROW_TILE)
    slot = tl.load(lora_ids_ptr + segment)
    count = tl.where(slot >= 0, tl.load(num_tokens_ptr + segment), 0)
    inside = places < count
    begin = tl.load(starts_ptr + segment)
    rows = tl.load(order_ptr + begin + places, mask=inside, other=0)
    return slot.to(tl.int64), rows.to(tl.int64), inside, count


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
    part = tl.program_id(1)
    slot, rows, inside, count = my_rows(
        order_ptr, lora_ids_ptr, num_tokens_ptr, starts_ptr, tl.program_id(2), ROW_TILE
    )
    if tl.program_id(0) * ROW_TILE >= count:
        return
    ranks = tl.arange(0, RANK_TILE)
    a_ptr = lora_a_ptr + (slot * tl.num_programs(1) + part) * RANK * IN_SIZE
    total = tl.zeros((RANK_TILE, ROW_TILE), dtype=tl.float32)
    for first in tl.range(0, IN_SIZE, IN_TILE):
        ins = first + tl.arange(0, IN_TILE)
        a = tl.load(
            a_ptr + ranks[:, None] * IN_SIZE + ins[None, :],
            mask=(ranks[:, None] < RANK) & (ins[None, :] < IN_SIZE),
            other=0.0,
        )
        x = tl.load(
            x_ptr + rows[None, :] * x_stride + ins[:, None],
            mask=inside[None, :] & (ins[:, None] < IN_SIZE),
            other=0.0,
        )
        total = tl.dot(a, x, total, input_precision="ieee")
    target = (part.to(tl.int64) * total_tokens + rows[None, :]) * RANK + ranks[:, None]
    tl.store(hidden_ptr + target, total, mask=inside[None, :] & (ranks[:, None] < RANK))


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
    tiles = tl.num_programs(1) // NUM_SLICES
    part = tl.program_id(1) // tiles
    slot, rows, inside, count = my_rows(
        order_ptr, lora_ids_ptr, num_tokens_ptr, starts_ptr, tl.program_id(2), ROW_TILE
    )
    first = tl.load(slice_starts_ptr + part) + (tl.program_id(1) % tiles) * OUT_TILE
    end = tl.load(slice_starts_ptr + part + 1)
    if (tl.program_id(0) * ROW_TILE >= count) | (first >= end):
        return
    ranks = tl.arange(0, RANK_TILE)
    columns = first + tl.arange(0, OUT_TILE)
    h = tl.load(
        hidden_ptr + (part.to(tl.int64) * total_tokens + rows[:, None]) * RANK + ranks[None, :],
        mask=inside[:, None] & (ranks[None, :] < RANK),
        other=0.0,
    )
    b = tl.load(
        lora_b_ptr + (slot * RANK + ranks[:, None]) * OUT_SIZE + columns[None, :],
        mask=(ranks[:, None] < RANK) & (columns[None, :] < end),
        other=0.0,
    )
    place = y_ptr + rows[:, None] * y_stride + columns[None, :]
    mask = inside[:, None] & (columns[None, :] < end)
    y = tl.load(place, mask=mask, other=0.0).to(tl.float32)
    y += tl.dot(h.to(b.dtype), b, input_precision="ieee")
    tl.store(place, y.to(y_ptr.dtype.element_ty), mask=mask)
