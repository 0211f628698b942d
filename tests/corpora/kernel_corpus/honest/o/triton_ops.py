"""Another right way: everything on its side, [rank, rows] and [columns, rows], and the last tile of
features comes first."""

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
    segment = tl.program_id(2)
    slot = tl.load(lora_ids_ptr + segment).to(tl.int64)
    place = tl.program_id(0) * ROW_TILE + tl.arange(0, ROW_TILE)
    is_row = (place < tl.load(num_tokens_ptr + segment)) & (slot >= 0)
    if tl.max(is_row.to(tl.int32), axis=0) == 0:
        return
    order_ptr += tl.load(starts_ptr + segment)
    row = tl.load(order_ptr + place, mask=is_row, other=0).to(tl.int64)
    rank = tl.arange(0, RANK_TILE)
    is_rank = rank < RANK
    part = slot * tl.num_programs(1) + tl.program_id(1)
    a_ptr = lora_a_ptr + (part * RANK + rank)[:, None] * IN_SIZE
    acc = tl.zeros([RANK_TILE, ROW_TILE], tl.float32)
    for tile in range(0, tl.cdiv(IN_SIZE, IN_TILE)):
        column = (tl.cdiv(IN_SIZE, IN_TILE) - 1 - tile) * IN_TILE + tl.arange(0, IN_TILE)
        inside = column < IN_SIZE
        x_mask = inside[:, None] & is_row[None, :]
        x = tl.load(x_ptr + (row * x_stride)[None, :] + column[:, None], mask=x_mask, other=0.0)
        a_mask = is_rank[:, None] & inside[None, :]
        a = tl.load(a_ptr + column[None, :], mask=a_mask, other=0.0)
        acc += tl.dot(a.to(x.dtype), x, input_precision="ieee")
    plane = tl.program_id(1).to(tl.int64) * total_tokens
    at = hidden_ptr + (plane + row)[None, :] * RANK + rank[:, None]
    tl.store(at, acc, mask=is_rank[:, None] & is_row[None, :])


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
    segment, tiles = tl.program_id(2), tl.num_programs(1) // NUM_SLICES
    index, tile = tl.program_id(1) // tiles, tl.program_id(1) % tiles
    column = tl.load(slice_starts_ptr + index) + tile * OUT_TILE + tl.arange(0, OUT_TILE)
    is_column = column < tl.load(slice_starts_ptr + index + 1)
    slot = tl.load(lora_ids_ptr + segment).to(tl.int64)
    place = tl.program_id(0) * ROW_TILE + tl.arange(0, ROW_TILE)
    is_row = (place < tl.load(num_tokens_ptr + segment)) & (slot >= 0)
    work = tl.max(is_row.to(tl.int32), axis=0) * tl.max(is_column.to(tl.int32), axis=0)
    if work == 0:
        return
    order_ptr += tl.load(starts_ptr + segment)
    row = tl.load(order_ptr + place, mask=is_row, other=0).to(tl.int64)
    rank = tl.arange(0, RANK_TILE)
    is_rank = rank < RANK
    h_at = hidden_ptr + (index.to(tl.int64) * total_tokens + row)[None, :] * RANK + rank[:, None]
    h = tl.load(h_at, mask=is_rank[:, None] & is_row[None, :], other=0.0)
    b_at = lora_b_ptr + (slot * RANK + rank)[None, :] * OUT_SIZE + column[:, None]
    b = tl.load(b_at, mask=is_column[:, None] & is_rank[None, :], other=0.0)
    mask = is_column[:, None] & is_row[None, :]
    y_at = y_ptr + (row * y_stride)[None, :] + column[:, None]
    y = tl.load(y_at, mask=mask, other=0.0)
    total = tl.dot(b, h.to(b.dtype), y.to(tl.float32), input_precision="ieee")
    tl.store(y_at, total, mask=mask)
