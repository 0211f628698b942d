"""Other right kernels: tiles that are transposed, ranks 16 by 16."""

import triton
import triton.language as tl


@triton.jit
def lora_shrink_kernel(
    hidden_ptr, x_ptr, lora_a_ptr, order_ptr, lora_ids_ptr, num_tokens_ptr, starts_ptr,
    total_tokens, x_stride,
    IN_SIZE: tl.constexpr, RANK: tl.constexpr, ROW_TILE: tl.constexpr, RANK_TILE: tl.constexpr,
    IN_TILE: tl.constexpr,
):  # fmt: skip
    tile, part, segment = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    slot = tl.load(lora_ids_ptr + segment).to(tl.int64)
    count = tl.load(num_tokens_ptr + segment)
    if slot < 0:
        return
    if tile * ROW_TILE >= count:
        return
    place = tile * ROW_TILE + tl.arange(0, ROW_TILE)
    there = place < count
    row = tl.load(order_ptr + tl.load(starts_ptr + segment) + place, there, 0).to(tl.int64)
    rank = tl.arange(0, RANK_TILE)
    a_ptr = lora_a_ptr + (slot * tl.num_programs(1) + part) * (RANK * IN_SIZE)
    a_ptr += rank[:, None] * IN_SIZE
    acc = tl.zeros([RANK_TILE, ROW_TILE], tl.float32)
    for begin in tl.range(0, IN_SIZE, IN_TILE):
        column = begin + tl.arange(0, IN_TILE)
        mask = (column < IN_SIZE)[:, None] & there[None, :]
        x = tl.load(x_ptr + row[None, :] * x_stride + column[:, None], mask, 0.0)
        a = tl.load(
            a_ptr + column[None, :], (rank < RANK)[:, None] & (column < IN_SIZE)[None, :], 0.0
        )
        acc = tl.dot(a.to(x.dtype), x, acc, input_precision="ieee")
    target = hidden_ptr + (part.to(tl.int64) * total_tokens + row[None, :]) * RANK + rank[:, None]
    tl.store(target, acc, (rank < RANK)[:, None] & there[None, :])


@triton.jit
def lora_expand_kernel(
    y_ptr, hidden_ptr, lora_b_ptr, slice_starts_ptr, order_ptr, lora_ids_ptr, num_tokens_ptr,
    starts_ptr, total_tokens, y_stride,
    OUT_SIZE: tl.constexpr, NUM_SLICES: tl.constexpr, RANK: tl.constexpr, ROW_TILE: tl.constexpr,
    RANK_TILE: tl.constexpr, OUT_TILE: tl.constexpr,
):  # fmt: skip
    segment = tl.program_id(2)
    tiles = tl.num_programs(1) // NUM_SLICES
    part = (tl.program_id(1) // tiles).to(tl.int64)
    slot = tl.load(lora_ids_ptr + segment).to(tl.int64)
    count = tl.load(num_tokens_ptr + segment)
    column = tl.load(slice_starts_ptr + part) + (tl.program_id(1) - part * tiles) * OUT_TILE
    column += tl.arange(0, OUT_TILE)
    wide = column < tl.load(slice_starts_ptr + part + 1)
    place = tl.program_id(0) * ROW_TILE + tl.arange(0, ROW_TILE)
    there = (place < count) & (slot >= 0)
    if (tl.sum(there.to(tl.int32), 0) > 0) & (tl.sum(wide.to(tl.int32), 0) > 0):
        row = tl.load(order_ptr + tl.load(starts_ptr + segment) + place, there, 0).to(tl.int64)
        delta = tl.zeros([OUT_TILE, ROW_TILE], tl.float32)
        for begin in tl.static_range(0, RANK_TILE, 16):
            rank = begin + tl.arange(0, 16)
            h_at = (part * total_tokens + row[None, :]) * RANK + rank[:, None]
            h = tl.load(hidden_ptr + h_at, (rank < RANK)[:, None] & there[None, :], 0.0)
            b_at = (slot * RANK + rank[None, :]) * OUT_SIZE + column[:, None]
            b = tl.load(lora_b_ptr + b_at, wide[:, None] & (rank < RANK)[None, :], 0.0)
            delta = tl.dot(b, h.to(b.dtype), delta, input_precision="ieee")
        y_at = y_ptr + row[None, :] * y_stride + column[:, None]
        y = tl.load(y_at, wide[:, None] & there[None, :], 0.0)
        tl.store(y_at, delta + y.to(tl.float32), wide[:, None] & there[None, :])
