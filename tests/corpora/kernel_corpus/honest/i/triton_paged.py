"""Another right way: each tile is a softmax of its own, and two averages join by how much of the
sum of both either stands for. No maximum and no sum goes from tile to tile, only an average and its
log-sum-exp. Splits join in the same way, one after the other.
"""

import triton
import triton.language as tl

NOTHING = tl.constexpr(float("-inf"))


@triton.jit
def softmax_of(scores):
    """A tile's weights, which add up to 1, and the logarithm of its sum; -inf without any."""
    largest = tl.max(scores, 1)
    shift = tl.where(largest > NOTHING, largest, 0.0)
    weights = tl.exp(scores - shift[:, None])
    total = tl.sum(weights, 1)
    seen = total > 0.0
    total = tl.where(seen, total, 1.0)
    return weights / total[:, None], tl.where(seen, shift + tl.log(total), NOTHING)


@triton.jit
def join(mass, other):
    """The share of `other` in both, and the logarithm of their sum."""
    largest = tl.maximum(mass, other)
    shift = tl.where(largest > NOTHING, largest, 0.0)
    mine, theirs = tl.exp(mass - shift), tl.exp(other - shift)
    total = mine + theirs
    share = theirs / tl.where(total > 0.0, total, 1.0)
    return share, tl.where(total > 0.0, shift + tl.log(tl.where(total > 0.0, total, 1.0)), NOTHING)


@triton.jit
def rows_of_pages(table_ptr, position, seen, BLOCK_SIZE: tl.constexpr):
    block = tl.load(table_ptr + position // BLOCK_SIZE, mask=seen, other=0)
    return tl.cast(block, tl.int64) * BLOCK_SIZE + position % BLOCK_SIZE


@triton.jit
def store_kv_kernel(
    key_ptr,
    value_ptr,
    key_cache_ptr,
    value_cache_ptr,
    slot_mapping_ptr,
    key_stride,
    value_stride,
    ROW: tl.constexpr,
    ROW_TILE: tl.constexpr,
):
    token = tl.cast(tl.program_id(0), tl.int64)
    slot = tl.load(slot_mapping_ptr + token)
    if slot < 0:
        return
    for begin in tl.static_range(0, ROW, 64):
        column = begin + tl.arange(0, 64)
        inside = column < ROW
        tl.store(
            value_cache_ptr + (slot * ROW + column),
            tl.load(value_ptr + (token * value_stride + column), inside),
            inside,
        )
        tl.store(
            key_cache_ptr + (slot * ROW + column),
            tl.load(key_ptr + (token * key_stride + column), inside),
            inside,
        )


@triton.jit
def paged_decode_kernel(
    output_ptr,
    lse_ptr,
    query_ptr,
    key_cache_ptr,
    value_cache_ptr,
    block_table_ptr,
    seq_lens_ptr,
    query_stride,
    table_stride,
    scale,
    window,
    BLOCK_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    GROUP_TILE: tl.constexpr,
    DIM_TILE: tl.constexpr,
    KEY_TILE: tl.constexpr,
):
    kv_head, part = tl.program_id(1), tl.program_id(2)
    request = tl.cast(tl.program_id(0), tl.int64)
    table_ptr = block_table_ptr + request * table_stride
    member, feature = tl.arange(0, GROUP_TILE), tl.arange(0, DIM_TILE)
    head = kv_head * GROUP + member
    mine = (member[:, None] < GROUP) & (feature[None, :] < HEAD_DIM)
    q_ptr = query_ptr + request * query_stride
    q = tl.load(q_ptr + head[:, None] * HEAD_DIM + feature[None, :], mask=mine, other=0.0)

    last = tl.load(seq_lens_ptr + request)
    begin = last - tl.minimum(window, last)
    num_tiles = (last - begin + KEY_TILE - 1) // KEY_TILE
    from_tile, to_tile = num_tiles * part // NUM_SPLITS, num_tiles * (part + 1) // NUM_SPLITS
    average = tl.zeros((GROUP_TILE, DIM_TILE), dtype=tl.float32)
    mass = tl.full((GROUP_TILE,), NOTHING, dtype=tl.float32)
    for tile in range(from_tile, to_tile):
        position = begin + tile * KEY_TILE + tl.arange(0, KEY_TILE)
        seen = position < last
        row = rows_of_pages(table_ptr, position, seen, BLOCK_SIZE)
        row = row * tl.num_programs(1) + kv_head
        in_cache = seen[:, None] & (feature[None, :] < HEAD_DIM)
        place = row[:, None] * HEAD_DIM + feature[None, :]
        k = tl.load(key_cache_ptr + place, mask=in_cache, other=0.0)
        scores = tl.dot(q, k.T, input_precision="ieee") * scale
        weights, found = softmax_of(tl.where(seen[None, :], scores, NOTHING))
        v = tl.load(value_cache_ptr + place, mask=in_cache, other=0.0)
        new = tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        share, mass = join(mass, found)
        average += share[:, None] * (new - average)

    row = (request * tl.num_programs(1) * GROUP + head) * NUM_SPLITS + part
    tl.store(output_ptr + row[:, None] * HEAD_DIM + feature[None, :], average, mask=mine)
    if NUM_SPLITS != 1:
        tl.store(lse_ptr + row, mass, mask=member < GROUP)


@triton.jit
def reduce_splits_kernel(
    output_ptr,
    partial_ptr,
    lse_ptr,
    HEAD_DIM: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    DIM_TILE: tl.constexpr,
    SPLIT_TILE: tl.constexpr,
):
    row = tl.cast(tl.program_id(0), tl.int64)
    feature = tl.arange(0, DIM_TILE)
    inside = feature < HEAD_DIM
    average = tl.zeros((DIM_TILE,), dtype=tl.float32)
    mass = tl.full((1,), NOTHING, dtype=tl.float32)
    for part in range(NUM_SPLITS):
        number = row * NUM_SPLITS + part
        found = tl.load(lse_ptr + number + tl.arange(0, 1))
        new = tl.load(partial_ptr + number * HEAD_DIM + feature, mask=inside, other=0.0)
        share, mass = join(mass, found)
        average += share * (new - average)
    tl.store(output_ptr + row * HEAD_DIM + feature, average, mask=inside)


@triton.jit
def paged_prefill_kernel(
    output_ptr,
    query_ptr,
    key_cache_ptr,
    value_cache_ptr,
    block_table_ptr,
    query_start_loc_ptr,
    seq_lens_ptr,
    query_stride,
    table_stride,
    scale,
    window,
    BLOCK_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_TILE: tl.constexpr,
    QUERY_TILE: tl.constexpr,
    KEY_TILE: tl.constexpr,
):
    request, head = tl.cast(tl.program_id(2), tl.int64), tl.program_id(1)
    begin = tl.load(query_start_loc_ptr + request)
    count = tl.load(query_start_loc_ptr + request + 1) - begin
    top = tl.program_id(0) * QUERY_TILE
    if top < count:
        step, feature = tl.arange(0, QUERY_TILE), tl.arange(0, DIM_TILE)
        mine = (top + step < count)[:, None] & (feature < HEAD_DIM)[None, :]
        token = tl.cast(begin + top + step, tl.int64)
        q_ptr = query_ptr + token[:, None] * query_stride + head * HEAD_DIM + feature[None, :]
        q = tl.load(q_ptr, mask=mine, other=0.0)
        before = tl.load(seq_lens_ptr + request) - count
        own = before + top + step
        newest = before + tl.minimum(top + QUERY_TILE, count) - 1
        oldest = tl.maximum(before + top - window + 1, 0)
        average = tl.zeros((QUERY_TILE, DIM_TILE), dtype=tl.float32)
        mass = tl.full((QUERY_TILE,), NOTHING, dtype=tl.float32)
        table_ptr = block_table_ptr + request * table_stride
        # Backwards, from the newest token on.
        start = newest
        while start >= oldest:
            position = start - tl.arange(0, KEY_TILE)
            there = position >= oldest
            row = rows_of_pages(table_ptr, position, there, BLOCK_SIZE)
            row = row * (tl.num_programs(1) // GROUP) + head // GROUP
            place = row[:, None] * HEAD_DIM + feature[None, :]
            in_cache = there[:, None] & (feature < HEAD_DIM)[None, :]
            k = tl.load(key_cache_ptr + place, mask=in_cache, other=0.0)
            scores = tl.dot(q, k.T, input_precision="ieee") * scale
            seen = (position[None, :] <= own[:, None]) & there[None, :]
            seen = seen & (own[:, None] - position[None, :] < window)
            weights, found = softmax_of(tl.where(seen, scores, NOTHING))
            v = tl.load(value_cache_ptr + place, mask=in_cache, other=0.0)
            new = tl.dot(weights.to(v.dtype), v, input_precision="ieee")
            share, mass = join(mass, found)
            average += share[:, None] * (new - average)
            start -= KEY_TILE
        out = (token[:, None] * tl.num_programs(1) + head) * HEAD_DIM + feature[None, :]
        tl.store(output_ptr + out, average, mask=mine)
