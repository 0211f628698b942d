"""Ranks in the first axis of the product, and early returns."""

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
    seg = tl.program_id(2)
    slot = tl.load(lora_ids_ptr + seg)
    if slot < 0:
        return
    count = tl.load(num_tokens_ptr + seg)
    if tl.program_id(0) * ROW_TILE >= count:
        return
    lane = tl.program_id(0) * ROW_TILE + tl.arange(0, ROW_TILE)
    ok = lane < count
    row = tl.load(order_ptr + tl.load(starts_ptr + seg) + lane, mask=ok, other=0).to(tl.int64)
    k = tl.arange(0, RANK_TILE)
    which = slot.to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    acc = tl.zeros([RANK_TILE, ROW_TILE], tl.float32)
    for i in range(0, tl.cdiv(IN_SIZE, IN_TILE)):
        c = i * IN_TILE + tl.arange(0, IN_TILE)
        a = tl.load(
            lora_a_ptr + (which * RANK + k)[:, None] * IN_SIZE + c[None, :],
            mask=(k < RANK)[:, None] & (c < IN_SIZE)[None, :],
            other=0.0,
        )
        x = tl.load(
            x_ptr + row[None, :] * x_stride + c[:, None],
            mask=ok[None, :] & (c < IN_SIZE)[:, None],
            other=0.0,
        )
        acc += tl.dot(a, x, input_precision="ieee")
    at = (tl.program_id(1).to(tl.int64) * total_tokens + row)[None, :] * RANK + k[:, None]
    tl.store(hidden_ptr + at, acc, mask=(k < RANK)[:, None] & ok[None, :])


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
    seg = tl.program_id(2)
    slot = tl.load(lora_ids_ptr + seg)
    count = tl.load(num_tokens_ptr + seg)
    per = tl.num_programs(1) // NUM_SLICES
    piece = tl.program_id(1) // per
    lo = tl.load(slice_starts_ptr + piece)
    hi = tl.load(slice_starts_ptr + piece + 1)
    left = lo + (tl.program_id(1) - piece * per) * OUT_TILE
    if (slot < 0) | (tl.program_id(0) * ROW_TILE >= count) | (left >= hi):
        return
    col = left + tl.arange(0, OUT_TILE)
    lane = tl.program_id(0) * ROW_TILE + tl.arange(0, ROW_TILE)
    ok = (lane < count) & (slot >= 0)
    inside = col < hi
    row = tl.load(order_ptr + tl.load(starts_ptr + seg) + lane, mask=ok, other=0).to(tl.int64)
    k = tl.arange(0, RANK_TILE)
    h = tl.load(
        hidden_ptr + (piece.to(tl.int64) * total_tokens + row)[:, None] * RANK + k[None, :],
        mask=ok[:, None] & (k < RANK)[None, :],
        other=0.0,
    )
    b = tl.load(
        lora_b_ptr + (slot.to(tl.int64) * RANK + k)[:, None] * OUT_SIZE + col[None, :],
        mask=(k < RANK)[:, None] & inside[None, :],
        other=0.0,
    )
    add = tl.dot(h.to(b.dtype), b, input_precision="ieee")
    at = y_ptr + row[:, None] * y_stride + col[None, :]
    mask = ok[:, None] & inside[None, :]
    old = tl.load(at, mask=mask, other=0.0)
    tl.store(at, (old.to(tl.float32) + add).to(old.dtype), mask=mask)
