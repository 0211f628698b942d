"""Another right way: strides over the grid, two accumulators that take turns, tiles that begin at a
multiple of their size, maximum and sum as one pair, and one query head after the other.

Every address is that of a token that exists: what is not seen is chosen away after the load.
"""

import triton
import triton.language as tl

SMALL = tl.constexpr(-1.0e38)


@triton.jit
def store_kv_kernel(
    key_ptr, value_ptr, key_cache_ptr, value_cache_ptr, slot_mapping_ptr, key_stride, value_stride,
    ROW: tl.constexpr, ROW_TILE: tl.constexpr,
):  # fmt: skip
    programs = tl.num_programs(0)
    PIECE: tl.constexpr = min(ROW_TILE, 32)
    for token in range(tl.program_id(0), programs, programs):
        slot = tl.load(slot_mapping_ptr + token)
        for begin in tl.range(0, ROW, PIECE):
            column = begin + tl.arange(0, PIECE)
            keep = (column < ROW) & (slot >= 0)
            key = tl.load(key_ptr + token.to(tl.int64) * key_stride + column, keep)
            tl.store(key_cache_ptr + slot * ROW + column, key, keep)
            value = tl.load(value_ptr + token.to(tl.int64) * value_stride + column, keep)
            tl.store(value_cache_ptr + slot * ROW + column, value, keep)


@triton.jit
def joined(left_max, left_sum, right_max, right_sum):
    """Two parts of a softmax as one: the larger maximum, and both sums seen from it."""
    largest = tl.maximum(left_max, right_max)
    left = tl.where(left_max < largest, left_sum * tl.exp(left_max - largest), left_sum)
    right = tl.where(right_max < largest, right_sum * tl.exp(right_max - largest), right_sum)
    return largest, left + right


@triton.jit
def slots_of(table_ptr, position, BLOCK_SIZE: tl.constexpr):
    page = position // BLOCK_SIZE
    return tl.load(table_ptr + page).to(tl.int64) * BLOCK_SIZE + (position - page * BLOCK_SIZE)


@triton.jit
def taken_in(query, key, value, visible, scale, top, mass, acc):
    """One tile of keys into a running average; nothing in it is ever -inf."""
    scores = tl.dot(query, key.T, input_precision="ieee") * scale
    scores = tl.where(visible, scores, SMALL)
    ones = tl.where(visible, 1.0, 0.0)
    tile_top, tile_mass = tl.reduce((scores, ones), 1, joined)
    new_top, new_mass = joined(top, mass, tile_top, tile_mass)
    weights = tl.where(visible, tl.exp(scores - new_top[:, None]), 0.0)
    acc *= tl.exp(top - new_top)[:, None]
    return new_top, new_mass, tl.dot(weights.to(value.dtype), value, acc, input_precision="ieee")


@triton.jit
def paged_decode_kernel(
    output_ptr, lse_ptr, query_ptr, key_cache_ptr, value_cache_ptr, block_table_ptr, seq_lens_ptr,
    query_stride, table_stride, scale, window,
    BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    NUM_SPLITS: tl.constexpr, GROUP_TILE: tl.constexpr, DIM_TILE: tl.constexpr,
    KEY_TILE: tl.constexpr,
):  # fmt: skip
    request, kv_head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    kv_heads = tl.num_programs(1)
    member = tl.arange(0, GROUP_TILE)[:, None]
    dim = tl.arange(0, DIM_TILE)[None, :]
    safe_dim = tl.minimum(dim, HEAD_DIM - 1)
    mine = (member < GROUP) & (dim < HEAD_DIM)
    query_ptr += request * query_stride + kv_head * (GROUP * HEAD_DIM)
    query = tl.load(query_ptr + tl.minimum(member, GROUP - 1) * HEAD_DIM + safe_dim)
    query = tl.where(mine, query, 0.0).to(query_ptr.dtype.element_ty)

    length = tl.load(seq_lens_ptr + request)
    first = tl.maximum(length - window, 0)
    tiles = tl.cdiv(tl.cdiv(length - first, NUM_SPLITS), KEY_TILE)
    begin = first + split * tiles * KEY_TILE
    end = min(begin + tiles * KEY_TILE, length)
    table_ptr = block_table_ptr + request * table_stride
    top = tl.full([GROUP_TILE], SMALL, tl.float32)
    mass = tl.zeros([GROUP_TILE], tl.float32)
    acc = tl.zeros([GROUP_TILE, DIM_TILE], tl.float32)
    other_top, other_mass, other_acc = top, mass, acc
    for start in range(begin, end, KEY_TILE):
        position = start + tl.arange(0, KEY_TILE)
        slot = slots_of(table_ptr, tl.minimum(position, end - 1), BLOCK_SIZE)
        place = ((slot * kv_heads + kv_head) * HEAD_DIM)[:, None] + safe_dim
        visible = (position < end)[:, None]
        key = tl.load(key_cache_ptr + place)
        key = tl.where(visible & (dim < HEAD_DIM), key, 0.0).to(query.dtype)
        value = tl.load(value_cache_ptr + place)
        value = tl.where(visible & (dim < HEAD_DIM), value, 0.0).to(query.dtype)
        seen = (position < end)[None, :] & (member < GROUP)
        last_top, last_mass, last_acc = other_top, other_mass, other_acc
        other_top, other_mass, other_acc = taken_in(query, key, value, seen, scale, top, mass, acc)
        top, mass, acc = last_top, last_mass, last_acc

    both_top, both_mass = joined(top, mass, other_top, other_mass)
    acc = acc * tl.exp(top - both_top)[:, None] + other_acc * tl.exp(other_top - both_top)[:, None]
    row = ((request * kv_heads + kv_head) * GROUP + member) * NUM_SPLITS + split
    share = tl.where(both_mass > 0.0, 1.0 / both_mass, 0.0)
    tl.store(output_ptr + row * HEAD_DIM + dim, acc * share[:, None], mine)
    if NUM_SPLITS > 1:
        lse = tl.where(both_mass > 0.0, both_top + tl.log(both_mass), float("-inf"))
        tl.store(lse_ptr + row, lse[:, None], member < GROUP)


@triton.jit
def reduce_splits_kernel(
    output_ptr, partial_ptr, lse_ptr,
    HEAD_DIM: tl.constexpr, NUM_SPLITS: tl.constexpr, DIM_TILE: tl.constexpr,
    SPLIT_TILE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, SPLIT_TILE)
    lse = tl.load(lse_ptr + row * NUM_SPLITS + split, split < NUM_SPLITS, float("-inf"))
    lse = tl.maximum(lse, SMALL)
    share = tl.softmax(lse)
    share = tl.where(lse > SMALL, share, 0.0)
    PIECE: tl.constexpr = DIM_TILE // 2 if DIM_TILE > 16 else DIM_TILE
    for piece in tl.static_range(0, DIM_TILE, PIECE):
        dim = piece + tl.arange(0, PIECE)
        place = (row * NUM_SPLITS + split)[None, :] * HEAD_DIM + dim[:, None]
        inside = (dim < HEAD_DIM)[:, None] & (split < NUM_SPLITS)[None, :]
        partial = tl.load(partial_ptr + place, inside, 0.0)
        output = (partial * share[None, :]).sum(1)
        tl.store(output_ptr + row * HEAD_DIM + dim, output, dim < HEAD_DIM)


@triton.jit
def paged_prefill_kernel(
    output_ptr, query_ptr, key_cache_ptr, value_cache_ptr, block_table_ptr, query_start_loc_ptr,
    seq_lens_ptr, query_stride, table_stride, scale, window,
    BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, DIM_TILE: tl.constexpr,
    QUERY_TILE: tl.constexpr, KEY_TILE: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(2).to(tl.int64)
    head, heads = tl.program_id(1), tl.num_programs(1)
    token_begin = tl.load(query_start_loc_ptr + request)
    new = tl.load(query_start_loc_ptr + request + 1) - token_begin
    old = tl.load(seq_lens_ptr + request) - new
    row = tl.program_id(0) * QUERY_TILE + tl.arange(0, QUERY_TILE)
    dim = tl.arange(0, DIM_TILE)[None, :]
    if tl.program_id(0) * QUERY_TILE >= new:
        return
    mine = (row < new)[:, None] & (dim < HEAD_DIM)
    token = (token_begin + row).to(tl.int64)[:, None]
    place = token * query_stride + head * HEAD_DIM + dim
    query = tl.load(query_ptr + place, mine, 0.0)
    at = old + row
    lowest = tl.maximum(old + tl.program_id(0) * QUERY_TILE - window + 1, 0)
    highest = tl.minimum(tl.max(at, 0), old + new - 1)
    top = tl.full([QUERY_TILE], SMALL, tl.float32)
    mass = tl.zeros([QUERY_TILE], tl.float32)
    acc = tl.zeros([QUERY_TILE, DIM_TILE], tl.float32)
    for tile in range(lowest // KEY_TILE, highest // KEY_TILE + 1):
        position = tile * KEY_TILE + tl.arange(0, KEY_TILE)
        safe = tl.minimum(tl.maximum(position, lowest), highest)
        slot = slots_of(block_table_ptr + request * table_stride, safe, BLOCK_SIZE)
        in_page = (dim < HEAD_DIM) & (position == safe)[:, None]
        place = ((slot * (heads // GROUP) + head // GROUP) * HEAD_DIM)[:, None] + dim
        key = tl.load(key_cache_ptr + place, in_page, 0.0).to(query.dtype)
        value = tl.load(value_cache_ptr + place, in_page, 0.0).to(query.dtype)
        ahead = position[None, :] - at[:, None]
        seen = (ahead <= 0) & (ahead > -window) & (position == safe)[None, :]
        top, mass, acc = taken_in(query, key, value, seen, scale, top, mass, acc)
    output = acc / tl.where(mass > 0.0, mass, 1.0)[:, None]
    tl.store(output_ptr + (token * heads + head) * HEAD_DIM + dim, output, mine)
