"""Other right kernels: features from the last tile to the first, and an atomic sum for y in single
precision, where each number has one program that adds to it.
"""

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
    segment, part = tl.program_id(2), tl.program_id(1).to(tl.int64)
    slot = tl.load(lora_ids_ptr + segment).to(tl.int64)
    left = tl.load(num_tokens_ptr + segment) - tl.program_id(0) * ROW_TILE
    if slot < 0:
        return
    if left <= 0:
        return
    number = tl.arange(0, ROW_TILE)
    order_at = order_ptr + tl.load(starts_ptr + segment) + tl.program_id(0) * ROW_TILE + number
    row = tl.load(order_at, mask=number < left, other=0).to(tl.int64)
    rank = tl.arange(0, RANK_TILE)
    weight_row = ((slot * tl.num_programs(1) + part) * RANK + rank) * IN_SIZE
    total = tl.zeros([RANK_TILE, ROW_TILE], tl.float32)
    LAST: tl.constexpr = (IN_SIZE - 1) // IN_TILE * IN_TILE
    for begin in range(LAST, -1, -IN_TILE):
        column = begin + tl.arange(0, IN_TILE)
        known = column < IN_SIZE
        weight_mask = (rank < RANK)[:, None] & known[None, :]
        weight_at = lora_a_ptr + weight_row[:, None] + column[None, :]
        weight = tl.load(weight_at, mask=weight_mask, other=0.0)
        x_mask = known[:, None] & (number < left)[None, :]
        x = tl.load(x_ptr + row[None, :] * x_stride + column[:, None], mask=x_mask, other=0.0)
        total = tl.dot(weight, x, total, input_precision="ieee")
    at = (part * total_tokens + row[None, :]) * RANK + rank[:, None]
    tl.store(hidden_ptr + at, total, mask=(rank < RANK)[:, None] & (number < left)[None, :])


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
    slot = tl.load(lora_ids_ptr + segment).to(tl.int64)
    left = tl.load(num_tokens_ptr + segment) - tl.program_id(0) * ROW_TILE
    tiles = tl.num_programs(1) // NUM_SLICES
    part = tl.program_id(1) // tiles
    column = (tl.program_id(1) - part * tiles) * OUT_TILE + tl.arange(0, OUT_TILE)
    column += tl.load(slice_starts_ptr + part)
    known = column < tl.load(slice_starts_ptr + part + 1)
    if slot < 0 or left <= 0 or tl.max(known.to(tl.int32), axis=0) == 0:
        return
    number = tl.arange(0, ROW_TILE)
    real = number < left
    order_at = order_ptr + tl.load(starts_ptr + segment) + tl.program_id(0) * ROW_TILE + number
    row = tl.load(order_at, mask=real, other=0).to(tl.int64)
    rank = tl.arange(0, RANK_TILE)
    hidden_at = hidden_ptr + (part * total_tokens + row[:, None]) * RANK + rank[None, :]
    hidden = tl.load(hidden_at, mask=real[:, None] & (rank < RANK)[None, :], other=0.0)
    weight_at = lora_b_ptr + (slot * RANK + rank[:, None]) * OUT_SIZE + column[None, :]
    weight = tl.load(weight_at, mask=(rank < RANK)[:, None] & known[None, :], other=0.0)
    change = tl.dot(hidden.to(weight.dtype), weight, input_precision="ieee")
    at = y_ptr + row[:, None] * y_stride + column[None, :]
    mask = real[:, None] & known[None, :]
    if y_ptr.dtype.element_ty == tl.float32:
        tl.atomic_add(at, change, mask=mask, sem="relaxed")
    else:
        y = tl.load(at, mask=mask, other=0.0).to(tl.float32)
        tl.store(at, y + change, mask=mask)
