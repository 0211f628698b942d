"""Another right way: tiles of a prefill from the longest rows to the shortest, keys from the last
to the first in steps below zero, and a maximum that is only moved where it must be."""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
ROOM = tl.constexpr(6.0)
"""So far a score may lie above what was taken for the largest; weights are at most 2^6 then."""


@triton.jit
def moved(level, scores):
    """What is subtracted from now on, the weights over it, and what earlier sums shrink by."""
    highest = tl.max(scores, 1)
    new = tl.where(highest > level + ROOM, highest, level)
    shift = tl.where(new == float("-inf"), 0.0, new)
    return new, tl.exp2(scores - shift[:, None]), tl.exp2(level - shift)


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
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping_ptr + token)
    if slot > -1:
        column = tl.arange(0, ROW_TILE)
        place = slot * ROW + column
        key = tl.load(key_ptr + token * key_stride + column, column < ROW)
        tl.store(key_cache_ptr + place, key, column < ROW)
        value = tl.load(value_ptr + token * value_stride + column, column < ROW)
        tl.store(value_cache_ptr + place, value, column < ROW)


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
    row = tl.program_id(0).to(tl.int64)
    split, dim = tl.arange(0, SPLIT_TILE), tl.arange(0, DIM_TILE)
    mass = tl.load(lse_ptr + row * NUM_SPLITS + split, split < NUM_SPLITS, float("-inf"))
    mass = tl.where(tl.max(mass, 0) == float("-inf"), 0.0, mass)
    share = tl.softmax(mass)
    at = row * NUM_SPLITS * HEAD_DIM + split[None, :] * HEAD_DIM + dim[:, None]
    inside = (split < NUM_SPLITS)[None, :] & (dim < HEAD_DIM)[:, None]
    parts = tl.load(partial_ptr + at, inside, 0.0)
    tl.store(output_ptr + row * HEAD_DIM + dim, tl.sum(parts * share[None, :], 1), dim < HEAD_DIM)


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
    request, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    kv_heads, split = tl.num_programs(1), tl.program_id(2)
    member, dim = tl.arange(0, GROUP_TILE), tl.arange(0, DIM_TILE)
    mine = (member < GROUP)[:, None] & (dim < HEAD_DIM)[None, :]
    head = kv_head * GROUP + member
    own = request * query_stride + head[:, None] * HEAD_DIM + dim[None, :]
    query = tl.load(query_ptr + own, mine, 0.0)
    length = tl.load(seq_lens_ptr + request)
    oldest = tl.maximum(length - window, 0)
    share = tl.cdiv(length - oldest, NUM_SPLITS)
    first = oldest + split * share
    last = tl.minimum(first + share, length)
    level = tl.full((GROUP_TILE,), float("-inf"), tl.float32)
    mass = tl.zeros((GROUP_TILE,), tl.float32)
    acc = tl.zeros((GROUP_TILE, DIM_TILE), tl.float32)
    table_ptr = block_table_ptr + request * table_stride
    for end in range(last, first, -KEY_TILE):
        position = end - KEY_TILE + tl.arange(0, KEY_TILE)
        there = position >= first
        block = tl.load(table_ptr + position // BLOCK_SIZE, there, 0).to(tl.int64)
        slot = block * BLOCK_SIZE + position % BLOCK_SIZE
        at = ((slot * kv_heads + kv_head) * HEAD_DIM)[:, None] + dim[None, :]
        inside = there[:, None] & (dim < HEAD_DIM)[None, :]
        key = tl.load(key_cache_ptr + at, inside, 0.0)
        scores = tl.dot(query, tl.permute(key, 1, 0), input_precision="ieee") * (scale * LOG2_E)
        scores = tl.where(there[None, :], scores, float("-inf"))
        level, weights, factor = moved(level, scores)
        mass = tl.fma(mass, factor, tl.sum(weights, 1))
        value = tl.load(value_cache_ptr + at, inside, 0.0)
        acc = tl.dot(weights.to(value.dtype), value, acc * factor[:, None], input_precision="ieee")
    row = ((request * kv_heads) * GROUP + head) * NUM_SPLITS + split
    mass_or_1 = tl.where(mass > 0.0, mass, 1.0)
    at = row[:, None] * HEAD_DIM + dim[None, :]
    tl.store(output_ptr + at, acc / mass_or_1[:, None], mine)
    if NUM_SPLITS > 1:
        tl.store(lse_ptr + row, (level + tl.log2(mass_or_1)) * LN_2, member < GROUP)


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
    request, head = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    heads = tl.num_programs(1).to(tl.int64)
    kv_head, kv_heads = head // GROUP, heads // GROUP
    begin = tl.load(query_start_loc_ptr + request)
    count = tl.load(query_start_loc_ptr + request + 1) - begin
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    if tile * QUERY_TILE >= count:
        return
    before = tl.load(seq_lens_ptr + request) - count
    row = tile * QUERY_TILE + tl.arange(0, QUERY_TILE)
    dim = tl.arange(0, DIM_TILE)
    mine = (row < count)[:, None] & (dim < HEAD_DIM)[None, :]
    token = (begin + row).to(tl.int64)[:, None]
    query = tl.load(query_ptr + token * query_stride + head * HEAD_DIM + dim[None, :], mine, 0.0)
    newest = before + tl.minimum(row, count - 1)
    oldest = tl.maximum(newest - window + 1, 0)
    first, last = tl.min(oldest, 0), tl.max(newest, 0)
    level = tl.full((QUERY_TILE,), float("-inf"), tl.float32)
    mass = tl.zeros((QUERY_TILE,), tl.float32)
    acc = tl.zeros((QUERY_TILE, DIM_TILE), tl.float32)
    table_ptr = block_table_ptr + request * table_stride
    for end in range(last + 1, first, -KEY_TILE):
        position = end - KEY_TILE + tl.arange(0, KEY_TILE)
        there = position >= first
        block = tl.load(table_ptr + position // BLOCK_SIZE, there, 0).to(tl.int64)
        slot = block * BLOCK_SIZE + position % BLOCK_SIZE
        at = ((slot * kv_heads + kv_head) * HEAD_DIM)[:, None] + dim[None, :]
        inside = there[:, None] & (dim < HEAD_DIM)[None, :]
        key = tl.load(key_cache_ptr + at, inside, 0.0)
        scores = tl.dot(query, tl.permute(key, 1, 0), input_precision="ieee") * (scale * LOG2_E)
        seen = (position[None, :] <= newest[:, None]) & (position[None, :] >= oldest[:, None])
        scores = tl.where(seen & there[None, :], scores, float("-inf"))
        level, weights, factor = moved(level, scores)
        mass = tl.fma(mass, factor, tl.sum(weights, 1))
        value = tl.load(value_cache_ptr + at, inside, 0.0)
        acc = tl.dot(weights.to(value.dtype), value, acc * factor[:, None], input_precision="ieee")
    at = (token * heads + head) * HEAD_DIM + dim[None, :]
    tl.store(output_ptr + at, acc / mass[:, None], mine)
