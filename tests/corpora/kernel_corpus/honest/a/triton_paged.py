"""Another right way: everything on its side. Scores are [keys, heads], accumulators [dim, heads].

Powers of 2 instead of e, one split after the other instead of all at once, rows in chunks, and
tokens without a slot masked instead of skipped.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
CHUNK = tl.constexpr(64)


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
    stored = slot >= 0
    target = tl.where(stored, slot, 0) * ROW
    for begin in range(0, ROW, CHUNK):
        column = begin + tl.arange(0, CHUNK)
        wanted = (column < ROW) & stored
        key = tl.load(key_ptr + token * key_stride + column, mask=wanted)
        tl.store(key_cache_ptr + target + column, key, mask=wanted)
        value = tl.load(value_ptr + token * value_stride + column, mask=wanted)
        tl.store(value_cache_ptr + target + column, value, mask=wanted)


@triton.jit
def softmax_step(scores, row_max, row_sum):
    """Scores [keys, rows] in units of ln 2."""
    new_max = tl.maximum(row_max, tl.max(scores, axis=0))
    shift = tl.where(new_max == float("-inf"), 0.0, new_max)
    weights = tl.exp2(scores - shift[None, :])
    rescale = tl.exp2(row_max - shift)
    return weights, rescale, new_max, row_sum * rescale + tl.sum(weights, axis=0)


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
    request = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    num_kv_heads = tl.num_programs(1)

    member = tl.arange(0, GROUP_TILE)
    dim = tl.arange(0, DIM_TILE)
    in_tile = (dim < HEAD_DIM)[:, None] & (member < GROUP)[None, :]
    head = kv_head * GROUP + member
    query_ptrs = query_ptr + request * query_stride + head[None, :] * HEAD_DIM + dim[:, None]
    query = tl.load(query_ptrs, mask=in_tile, other=0.0)  # [dim, heads]

    seq_len = tl.load(seq_lens_ptr + request)
    first = tl.maximum(seq_len - window, 0)
    num_tiles = tl.cdiv(seq_len - first, KEY_TILE)
    tiles = tl.cdiv(num_tiles, NUM_SPLITS)
    begin_tile = split * tiles
    end_tile = tl.minimum(begin_tile + tiles, num_tiles)

    row_max = tl.full([GROUP_TILE], float("-inf"), tl.float32)
    row_sum = tl.zeros([GROUP_TILE], tl.float32)
    acc = tl.zeros([DIM_TILE, GROUP_TILE], tl.float32)
    for tile in range(begin_tile, end_tile):
        position = first + tile * KEY_TILE + tl.arange(0, KEY_TILE)
        visible = position < seq_len
        entry = block_table_ptr + request * table_stride + position // BLOCK_SIZE
        block = tl.load(entry, mask=visible, other=0).to(tl.int64)
        row = (block * BLOCK_SIZE + position % BLOCK_SIZE) * num_kv_heads + kv_head
        offsets = row[:, None] * HEAD_DIM + dim[None, :]
        in_page = visible[:, None] & (dim < HEAD_DIM)[None, :]
        key = tl.load(key_cache_ptr + offsets, mask=in_page, other=0.0).to(query.dtype)
        value = tl.load(value_cache_ptr + offsets, mask=in_page, other=0.0).to(query.dtype)
        scores = tl.dot(key, query, input_precision="ieee") * scale * LOG2_E
        scores = tl.where(visible[:, None], scores, float("-inf"))
        weights, rescale, row_max, row_sum = softmax_step(scores, row_max, row_sum)
        acc = acc * rescale[None, :]
        acc += tl.dot(tl.trans(value), weights.to(query.dtype), input_precision="ieee")

    mass = tl.where(row_sum > 0.0, row_sum, 1.0)
    target = (request * num_kv_heads * GROUP + head) * NUM_SPLITS + split
    output_ptrs = output_ptr + target[None, :] * HEAD_DIM + dim[:, None]
    tl.store(output_ptrs, acc / mass[None, :], mask=in_tile)
    if NUM_SPLITS > 1:
        tl.store(lse_ptr + target, (row_max + tl.log2(mass)) * LN_2, mask=member < GROUP)


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
    dim = tl.arange(0, DIM_TILE)
    inside = dim < HEAD_DIM
    largest = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    acc = tl.zeros([DIM_TILE], tl.float32)
    for split in range(NUM_SPLITS):
        part = row * NUM_SPLITS + split
        mass = tl.load(lse_ptr + part)
        new_largest = tl.maximum(largest, mass)
        shift = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        before, share = tl.exp(largest - shift), tl.exp(mass - shift)
        partial = tl.load(partial_ptr + part * HEAD_DIM + dim, mask=inside, other=0.0)
        acc = acc * before + partial * share
        total = total * before + share
        largest = new_largest
    output = tl.where(total > 0.0, acc / total, 0.0)
    tl.store(output_ptr + row * HEAD_DIM + dim, output, mask=inside)


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
    request = tl.program_id(2).to(tl.int64)
    head = tl.program_id(1)
    num_heads = tl.num_programs(1)
    token_begin = tl.load(query_start_loc_ptr + request)
    token_end = tl.load(query_start_loc_ptr + request + 1)
    seq_len = tl.load(seq_lens_ptr + request)
    token = token_begin + tl.program_id(0) * QUERY_TILE + tl.arange(0, QUERY_TILE)
    position = seq_len - token_end + token
    dim = tl.arange(0, DIM_TILE)
    in_tile = (dim < HEAD_DIM)[:, None] & (token < token_end)[None, :]
    row = token.to(tl.int64)[None, :]
    query_ptrs = query_ptr + row * query_stride + head * HEAD_DIM + dim[:, None]
    query = tl.load(query_ptrs, mask=in_tile, other=0.0)  # [dim, tokens]

    earliest = seq_len - token_end + token_begin + tl.program_id(0) * QUERY_TILE
    first = tl.maximum(earliest - window + 1, 0)
    end = tl.minimum(earliest + QUERY_TILE, seq_len)
    if earliest >= seq_len:  # a tile behind the last token
        end = first
    row_max = tl.full([QUERY_TILE], float("-inf"), tl.float32)
    row_sum = tl.zeros([QUERY_TILE], tl.float32)
    acc = tl.zeros([DIM_TILE, QUERY_TILE], tl.float32)
    for start in range(first, end, KEY_TILE):
        past = start + tl.arange(0, KEY_TILE)
        known = past < end
        entry = block_table_ptr + request * table_stride + past // BLOCK_SIZE
        block = tl.load(entry, mask=known, other=0).to(tl.int64)
        slot = block * BLOCK_SIZE + past % BLOCK_SIZE
        cache_row = slot * (num_heads // GROUP) + head // GROUP
        offsets = cache_row[:, None] * HEAD_DIM + dim[None, :]
        in_page = known[:, None] & (dim < HEAD_DIM)[None, :]
        key = tl.load(key_cache_ptr + offsets, mask=in_page, other=0.0).to(query.dtype)
        value = tl.load(value_cache_ptr + offsets, mask=in_page, other=0.0).to(query.dtype)
        scores = tl.dot(key, query, input_precision="ieee") * scale * LOG2_E
        seen = (past[:, None] <= position[None, :]) & (past[:, None] > position[None, :] - window)
        scores = tl.where(seen, scores, float("-inf"))
        weights, rescale, row_max, row_sum = softmax_step(scores, row_max, row_sum)
        acc = acc * rescale[None, :]
        acc += tl.dot(tl.trans(value), weights.to(query.dtype), input_precision="ieee")

    mass = tl.where(row_sum > 0.0, row_sum, 1.0)
    output_ptrs = output_ptr + (row * num_heads + head) * HEAD_DIM + dim[:, None]
    tl.store(output_ptrs, acc / mass[None, :], mask=in_tile)
