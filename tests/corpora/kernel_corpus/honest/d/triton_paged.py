"""Another right way: all in single precision, scores times log2(e) from the start, sums taken of
the rounded weights, and a maximum that is only looked at where a tile exceeds it. An order of
requests is not read: each program serves its own."""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
BOTTOM = tl.constexpr(-3.0e38)


@triton.jit
def store_kv_kernel(
    key_ptr, value_ptr, key_cache_ptr, value_cache_ptr, slot_mapping_ptr, key_stride, value_stride,
    ROW: tl.constexpr, ROW_TILE: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping_ptr + token)
    which = tl.arange(0, 2)[:, None]
    column = tl.arange(0, ROW_TILE)[None, :]
    source = tl.where(
        which == 0, key_ptr + token * key_stride + column, value_ptr + token * value_stride + column
    )
    target = tl.where(
        which == 0, key_cache_ptr + slot * ROW + column, value_cache_ptr + slot * ROW + column
    )
    keep = (column < ROW) & (slot >= 0)
    tl.store(target, tl.load(source, mask=keep), mask=keep)


@triton.jit
def online_softmax(scores, row_max, row_sum):
    highest = tl.max(scores, axis=1)
    higher = highest > row_max
    new_max = tl.where(higher, highest, row_max)
    rescale = tl.where(higher, tl.exp2(tl.maximum(row_max, BOTTOM) - new_max), 1.0)
    weights = tl.exp2(scores - tl.maximum(new_max, BOTTOM)[:, None])
    return weights, rescale, new_max, tl.sum(weights, axis=1) + row_sum * rescale


@triton.jit
def paged_decode_kernel(
    output_ptr, lse_ptr, query_ptr, key_cache_ptr, value_cache_ptr, block_table_ptr, seq_lens_ptr,
    query_stride, table_stride, scale, window,
    BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    NUM_SPLITS: tl.constexpr, GROUP_TILE: tl.constexpr, DIM_TILE: tl.constexpr,
    KEY_TILE: tl.constexpr, order_ptr=None,
):  # fmt: skip
    request = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    dim = tl.arange(0, DIM_TILE)[None, :]
    head = tl.arange(0, GROUP_TILE)[:, None]
    keep = (head < GROUP) & (dim < HEAD_DIM)
    query = tl.load(
        query_ptr + request * query_stride + (kv_head * GROUP + head) * HEAD_DIM + dim,
        mask=keep, other=0.0,
    ).to(tl.float32) * (scale * LOG2_E)  # fmt: skip
    length = tl.load(seq_lens_ptr + request)
    first = tl.maximum(length - window, 0)
    per_split = tl.cdiv(tl.cdiv(length - first, KEY_TILE), NUM_SPLITS) * KEY_TILE
    begin = first + tl.program_id(2) * per_split
    row_max = tl.full([GROUP_TILE], float("-inf"), tl.float32)
    row_sum = tl.zeros([GROUP_TILE], tl.float32)
    acc = tl.zeros([GROUP_TILE, DIM_TILE], tl.float32)
    tile = 0
    while (tile < per_split) & (begin + tile < length):
        position = begin + tile + tl.arange(0, KEY_TILE)
        there = position < length
        if NUM_SPLITS > 1:
            there = there & (position < begin + per_split)
        block = tl.load(
            block_table_ptr + request * table_stride + position // BLOCK_SIZE, mask=there, other=0
        )
        slot = block.to(tl.int64) * BLOCK_SIZE + position % BLOCK_SIZE
        place = (slot[:, None] * tl.num_programs(1) + kv_head) * HEAD_DIM + dim
        mask = there[:, None] & (dim < HEAD_DIM)
        key = tl.load(key_cache_ptr + place, mask=mask, other=0.0).to(tl.float32)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee")
        scores = tl.where(there[None, :], scores, float("-inf"))
        weights, rescale, row_max, row_sum = online_softmax(scores, row_max, row_sum)
        value = tl.load(value_cache_ptr + place, mask=mask, other=0.0).to(tl.float32)
        acc = tl.dot(weights, value, acc * rescale[:, None], input_precision="ieee")
        tile += KEY_TILE
    row = (request * tl.num_programs(1) + kv_head) * GROUP + head
    row = row * NUM_SPLITS + tl.program_id(2)
    share = 1.0 / tl.where(row_sum > 0.0, row_sum, 1.0)
    tl.store(output_ptr + row * HEAD_DIM + dim, acc * share[:, None], mask=keep)
    if NUM_SPLITS > 1:
        lse = (row_max + tl.log2(tl.where(row_sum > 0.0, row_sum, 1.0))) * LN_2
        tl.store(lse_ptr + row, lse[:, None], mask=head < GROUP)


@triton.jit
def reduce_splits_kernel(
    output_ptr, partial_ptr, lse_ptr,
    HEAD_DIM: tl.constexpr, NUM_SPLITS: tl.constexpr, DIM_TILE: tl.constexpr,
    SPLIT_TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    dim = tl.arange(0, DIM_TILE)
    highest = tl.full([1], BOTTOM, tl.float32)
    total = tl.zeros([1], tl.float32)
    acc = tl.zeros([DIM_TILE], tl.float32)
    for split in range(NUM_SPLITS):
        lse = tl.load(lse_ptr + row * NUM_SPLITS + split)
        higher = tl.maximum(highest, lse)
        part = tl.load(
            partial_ptr + (row * NUM_SPLITS + split) * HEAD_DIM + dim,
            mask=dim < HEAD_DIM,
            other=0.0,
        )
        share = tl.exp(lse - higher)
        acc = acc * tl.exp(highest - higher) + part * share
        total = total * tl.exp(highest - higher) + share
        highest = higher
    tl.store(
        output_ptr + row * HEAD_DIM + dim, acc / tl.where(total > 0.0, total, 1.0),
        mask=dim < HEAD_DIM,
    )  # fmt: skip


@triton.jit
def paged_prefill_kernel(
    output_ptr, query_ptr, key_cache_ptr, value_cache_ptr, block_table_ptr, query_start_loc_ptr,
    seq_lens_ptr, query_stride, table_stride, scale, window,
    BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, DIM_TILE: tl.constexpr,
    QUERY_TILE: tl.constexpr, KEY_TILE: tl.constexpr,
):  # fmt: skip
    tile, head, request = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    begin = tl.load(query_start_loc_ptr + request)
    new = tl.load(query_start_loc_ptr + request + 1) - begin
    row = tile * QUERY_TILE + tl.arange(0, QUERY_TILE)
    dim = tl.arange(0, DIM_TILE)[None, :]
    keep = (row < new)[:, None] & (dim < HEAD_DIM)
    token = (begin + row).to(tl.int64)[:, None]
    query = tl.load(query_ptr + token * query_stride + head * HEAD_DIM + dim, mask=keep, other=0.0)
    query = query.to(tl.float32) * (scale * LOG2_E)
    at = tl.load(seq_lens_ptr + request) - new + row
    last = tl.minimum(tl.max(at, axis=0), tl.load(seq_lens_ptr + request) - 1)
    first = tl.maximum(tl.min(at, axis=0) - window + 1, 0)
    row_max = tl.full([QUERY_TILE], float("-inf"), tl.float32)
    row_sum = tl.zeros([QUERY_TILE], tl.float32)
    acc = tl.zeros([QUERY_TILE, DIM_TILE], tl.float32)
    if tile * QUERY_TILE < new:
        for start in range(first, last + 1, KEY_TILE):
            position = start + tl.arange(0, KEY_TILE)
            there = position <= last
            entry = block_table_ptr + request * table_stride + position // BLOCK_SIZE
            block = tl.load(entry, mask=there, other=0).to(tl.int64)
            slot = block * BLOCK_SIZE + position % BLOCK_SIZE
            kv_heads = tl.num_programs(1) // GROUP
            place = (slot[:, None] * kv_heads + head // GROUP) * HEAD_DIM + dim
            mask = there[:, None] & (dim < HEAD_DIM)
            key = tl.load(key_cache_ptr + place, mask=mask, other=0.0).to(tl.float32)
            scores = tl.dot(query, tl.trans(key), input_precision="ieee")
            past = at[:, None] - position[None, :]
            scores = tl.where((past >= 0) & (past < window), scores, float("-inf"))
            weights, rescale, row_max, row_sum = online_softmax(scores, row_max, row_sum)
            value = tl.load(value_cache_ptr + place, mask=mask, other=0.0).to(tl.float32)
            acc = tl.dot(weights, value, acc * rescale[:, None], input_precision="ieee")
    share = tl.where(row_sum > 0.0, row_sum, 1.0)[:, None]
    place = (token * tl.num_programs(1) + head) * HEAD_DIM + dim
    tl.store(output_ptr + place, acc / share, mask=keep)
