"""Another right way: everything on its side, rows of nobody clamped to the last of the segment, and
ranks some at a time."""

import triton
import triton.language as tl

SOME_RANKS = tl.constexpr(16)


@triton.jit
def rows_of(order_ptr, starts_ptr, num_tokens_ptr, segment, first, ROW_TILE: tl.constexpr):
    """A tile of a segment's rows, the last again and again behind its end, and which are its."""
    count = tl.load(num_tokens_ptr + segment)
    place = first + tl.arange(0, ROW_TILE)
    at = tl.load(starts_ptr + segment) + tl.minimum(place, count - 1)
    return tl.load(order_ptr + at).to(tl.int64), place < count


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
    segment, first = tl.program_id(2), tl.program_id(0) * ROW_TILE
    slot = tl.load(lora_ids_ptr + segment).to(tl.int64)
    if slot < 0:
        return
    if first >= tl.load(num_tokens_ptr + segment):
        return
    part, parts = tl.program_id(1).to(tl.int64), tl.num_programs(1).to(tl.int64)
    row, is_row = rows_of(order_ptr, starts_ptr, num_tokens_ptr, segment, first, ROW_TILE)
    rank = tl.arange(0, RANK_TILE)
    a_ptr = lora_a_ptr + (slot * parts + part) * RANK * IN_SIZE
    turned = tl.zeros((RANK_TILE, ROW_TILE), tl.float32)
    for tile in range(tl.cdiv(IN_SIZE, IN_TILE)):
        column = tile * IN_TILE + tl.arange(0, IN_TILE)
        inside = column < IN_SIZE
        a = tl.load(
            a_ptr + rank.to(tl.int64)[:, None] * IN_SIZE + column[None, :],
            mask=(rank < RANK)[:, None] & inside[None, :],
            other=0.0,
        )
        near = tl.minimum(column, IN_SIZE - 1)
        x = tl.load(x_ptr + row[None, :] * x_stride + near[:, None])
        x = tl.where(inside[:, None], x, tl.zeros_like(x))
        turned += tl.dot(a.to(x.dtype), x, input_precision="ieee")
    at = hidden_ptr + (part * total_tokens + row)[None, :] * RANK + rank[:, None]
    tl.store(at, turned, mask=(rank < RANK)[:, None] & is_row[None, :])


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
    segment, first = tl.program_id(2), tl.program_id(0) * ROW_TILE
    slot = tl.load(lora_ids_ptr + segment).to(tl.int64)
    each = tl.num_programs(1) // NUM_SLICES
    part = (tl.program_id(1) // each).to(tl.int64)
    edges = tl.load(slice_starts_ptr + part + tl.arange(0, 2))
    begin, end = tl.min(edges, 0), tl.max(edges, 0)
    column = begin + tl.program_id(1) % each * OUT_TILE + tl.arange(0, OUT_TILE)
    is_busy = (slot >= 0) & (first < tl.load(num_tokens_ptr + segment))
    if is_busy & (tl.min(column, 0) < end):
        row, is_row = rows_of(order_ptr, starts_ptr, num_tokens_ptr, segment, first, ROW_TILE)
        near = tl.minimum(column, end - 1)
        turned = tl.zeros((OUT_TILE, ROW_TILE), tl.float32)
        for some in tl.static_range(0, RANK_TILE, SOME_RANKS):
            rank = some + tl.arange(0, SOME_RANKS)
            inside = rank < RANK
            b = tl.load(
                lora_b_ptr + (slot * RANK + rank[None, :]) * OUT_SIZE + near[:, None],
                mask=inside[None, :],
                other=0.0,
            )
            h_ptr = hidden_ptr + (part * total_tokens + row[None, :]) * RANK + rank[:, None]
            h = tl.load(h_ptr, mask=inside[:, None], other=0.0).to(b.dtype)
            turned = tl.dot(b, h, turned, input_precision="ieee")
        mask = is_row[:, None] & (column < end)[None, :]
        at = y_ptr + row[:, None] * y_stride + column[None, :]
        y = tl.load(at, mask=mask)
        tl.store(at, (y.to(tl.float32) + turned.T).to(y.dtype), mask=mask)
