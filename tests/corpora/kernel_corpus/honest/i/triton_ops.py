"""Other right kernels: everything in single precision, and slots whose features are summed from the
last tile to the first."""

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
    segment, slice_id = tl.program_id(2), tl.program_id(1)
    count, top = tl.load(num_tokens_ptr + segment), tl.program_id(0) * ROW_TILE
    slot = tl.load(lora_ids_ptr + segment)
    if slot < 0:
        return
    if top >= count:
        return
    place = top + tl.arange(0, ROW_TILE)
    mine = place < count
    row = tl.load(order_ptr + tl.load(starts_ptr + segment) + place, mask=mine, other=0)
    row = tl.cast(row, tl.int64)
    rank = tl.arange(0, RANK_TILE)
    matrix = slot.to(tl.int64) * tl.num_programs(1) + slice_id
    total = tl.zeros((RANK_TILE, ROW_TILE), dtype=tl.float32)
    for tile in range((IN_SIZE + IN_TILE - 1) // IN_TILE):
        feature = ((IN_SIZE + IN_TILE - 1) // IN_TILE - 1 - tile) * IN_TILE + tl.arange(0, IN_TILE)
        x = tl.load(
            x_ptr + row[None, :] * x_stride + feature[:, None],
            mask=mine[None, :] & (feature < IN_SIZE)[:, None],
            other=0.0,
        ).to(tl.float32)
        a = tl.load(
            lora_a_ptr + (matrix * RANK + rank[:, None]) * IN_SIZE + feature[None, :],
            mask=(rank < RANK)[:, None] & (feature < IN_SIZE)[None, :],
            other=0.0,
        ).to(tl.float32)
        total += tl.dot(a, x, input_precision="ieee")
    at = (slice_id.to(tl.int64) * total_tokens + row[None, :]) * RANK + rank[:, None]
    tl.store(hidden_ptr + at, total, mask=mine[None, :] & (rank < RANK)[:, None])


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
    segment = tl.program_id(2)
    tiles = tl.num_programs(1) // NUM_SLICES
    slice_id, tile = tl.program_id(1) // tiles, tl.program_id(1) % tiles
    count, top = tl.load(num_tokens_ptr + segment), tl.program_id(0) * ROW_TILE
    slot = tl.load(lora_ids_ptr + segment)
    if slot < 0:
        return
    if top >= count:
        return
    left, right = tl.load(slice_starts_ptr + slice_id), tl.load(slice_starts_ptr + slice_id + 1)
    column = left + tile * OUT_TILE + tl.arange(0, OUT_TILE)
    if left + tile * OUT_TILE >= right:
        return
    place = top + tl.arange(0, ROW_TILE)
    mine = place < count
    row = tl.load(order_ptr + tl.load(starts_ptr + segment) + place, mask=mine, other=0)
    row = tl.cast(row, tl.int64)
    y_at = y_ptr + row[:, None] * y_stride + column[None, :]
    mask = mine[:, None] & (column < right)[None, :]
    total = tl.load(y_at, mask=mask, other=0.0).to(tl.float32)
    for first in tl.static_range(0, RANK_TILE, 16):
        rank = first + tl.arange(0, 16)
        h = tl.load(
            hidden_ptr
            + (slice_id.to(tl.int64) * total_tokens + row[:, None]) * RANK
            + rank[None, :],
            mask=mine[:, None] & (rank < RANK)[None, :],
            other=0.0,
        )
        b = tl.load(
            lora_b_ptr + (slot.to(tl.int64) * RANK + rank[:, None]) * OUT_SIZE + column[None, :],
            mask=(rank < RANK)[:, None] & (column < right)[None, :],
            other=0.0,
        ).to(tl.float32)
        total = tl.dot(h, b, total, input_precision="ieee")
    tl.store(y_at, total, mask=mask)
