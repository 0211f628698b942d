"""Another right way: page by page, so that no token has a table entry of its own.

A page's table entry is one scalar load. A page of fewer than 16 tokens still fills a tile of 16,
since `tl.dot` takes no smaller one, and a page of 24 one of 32; a mask cuts it off.
"""

import triton
import triton.language as tl


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
    high: tl.constexpr = ROW_TILE // 8 if ROW_TILE > 8 else 1
    low: tl.constexpr = ROW_TILE // high
    column = tl.arange(0, high)[:, None] * low + tl.arange(0, low)[None, :]
    stored = (column < ROW) & (slot != -1)
    key = tl.load(key_ptr + token * key_stride + column, mask=stored, other=0.0)
    value = tl.load(value_ptr + token * value_stride + column, mask=stored, other=0.0)
    tl.store(value_cache_ptr + slot * ROW + column, value, mask=stored)
    tl.store(key_cache_ptr + slot * ROW + column, key, mask=stored)


@triton.jit
def page_of(
    cache_ptr, slot, count, kv_head, num_kv_heads, HEAD_DIM: tl.constexpr, DIM_TILE: tl.constexpr,
    PAGE_TILE: tl.constexpr,
):  # fmt: skip
    """`count` tokens of one head from `slot` on: [PAGE_TILE, DIM_TILE], zero behind them."""
    token, feature = tl.arange(0, PAGE_TILE), tl.arange(0, DIM_TILE)
    at = ((slot + token) * num_kv_heads + kv_head)[:, None] * HEAD_DIM + feature[None, :]
    is_there = (token < count)[:, None] & (feature < HEAD_DIM)[None, :]
    return tl.load(cache_ptr + at, is_there, 0.0)


@triton.jit
def take_in(scores, value, row_max, row_sum, acc):
    """One more page into the running average, rescaled only by what has changed."""
    new_max = tl.maximum(row_max, tl.max(scores, 1))
    anchor = tl.where(new_max > float("-inf"), new_max, 0.0)
    weights = tl.exp(scores - anchor[:, None])
    keep = tl.exp(row_max - anchor)
    new = tl.dot(weights.to(value.dtype), value, acc * keep[:, None], input_precision="ieee")
    return new_max, row_sum * keep + tl.sum(weights, 1), new


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
    PAGE_TILE: tl.constexpr = triton.next_power_of_2(BLOCK_SIZE) if BLOCK_SIZE > 16 else 16
    member, column = tl.arange(0, GROUP_TILE)[:, None], tl.arange(0, DIM_TILE)[None, :]
    in_group = (member < GROUP) & (column < HEAD_DIM)
    query_at = (kv_head * GROUP + member) * HEAD_DIM + column
    query = tl.load(query_ptr + request * query_stride + query_at, in_group, 0.0)
    seq_len = tl.load(seq_lens_ptr + request)
    visible = tl.minimum(seq_len, window)
    stretch = tl.cdiv(tl.cdiv(visible, KEY_TILE), NUM_SPLITS) * KEY_TILE
    position = seq_len - visible + split * stretch
    end = tl.minimum(position + stretch, seq_len)

    row_max = tl.full([GROUP_TILE], float("-inf"), tl.float32)
    row_sum = tl.zeros([GROUP_TILE], tl.float32)
    acc = tl.zeros([GROUP_TILE, DIM_TILE], tl.float32)
    while position < end:
        offset = position % BLOCK_SIZE
        count = tl.minimum(BLOCK_SIZE - offset, end - position)
        page = block_table_ptr + request * table_stride + position // BLOCK_SIZE
        slot = tl.load(page).to(tl.int64) * BLOCK_SIZE + offset
        key = page_of(
            key_cache_ptr, slot, count, kv_head, num_kv_heads, HEAD_DIM, DIM_TILE, PAGE_TILE
        )
        scores = tl.dot(query, tl.trans(key.to(query.dtype)), input_precision="ieee") * scale
        scores = tl.where((tl.arange(0, PAGE_TILE) < count)[None, :], scores, float("-inf"))
        value = page_of(
            value_cache_ptr, slot, count, kv_head, num_kv_heads, HEAD_DIM, DIM_TILE, PAGE_TILE
        )
        row_max, row_sum, acc = take_in(scores, value.to(query.dtype), row_max, row_sum, acc)
        position += count

    member = tl.arange(0, GROUP_TILE)
    dim = tl.arange(0, DIM_TILE)
    mass = tl.where(row_sum == 0.0, 1.0, row_sum)
    target = ((request * num_kv_heads + kv_head) * GROUP + member) * NUM_SPLITS + split
    in_tile = (member[:, None] < GROUP) & (dim[None, :] < HEAD_DIM)
    tl.store(output_ptr + target[:, None] * HEAD_DIM + dim[None, :], acc / mass[:, None], in_tile)
    if NUM_SPLITS > 1:
        tl.store(lse_ptr + target, row_max + tl.log(mass), mask=member < GROUP)


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
    split = tl.arange(0, SPLIT_TILE)
    lse = tl.load(lse_ptr + row * NUM_SPLITS + split, split < NUM_SPLITS, float("-inf"))
    largest = tl.max(lse)
    lse -= tl.where(largest == float("-inf"), 0.0, largest)  # first: close to 0 it is exact
    total = tl.sum(tl.exp(lse))
    log_total = tl.log(tl.where(total > 0.0, total, 1.0))
    dim = tl.arange(0, DIM_TILE)
    inside = dim < HEAD_DIM
    acc = tl.zeros([DIM_TILE], tl.float32)
    for number in tl.static_range(NUM_SPLITS):
        mass = tl.sum(tl.where(split == number, tl.exp(lse - log_total), 0.0))
        part = partial_ptr + (row * NUM_SPLITS + number) * HEAD_DIM + dim
        acc += mass * tl.load(part, mask=inside, other=0.0)
    tl.store(output_ptr + row * HEAD_DIM + dim, acc, mask=inside)


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
    num_kv_heads = num_heads // GROUP
    PAGE_TILE: tl.constexpr = triton.next_power_of_2(BLOCK_SIZE) if BLOCK_SIZE > 16 else 16
    token_begin = tl.load(query_start_loc_ptr + request)
    query_len = tl.load(query_start_loc_ptr + request + 1) - token_begin
    row_begin = tl.program_id(0) * QUERY_TILE
    rows = tl.minimum(query_len - row_begin, QUERY_TILE)
    if rows <= 0:
        return
    token = (token_begin + row_begin).to(tl.int64)
    step, column = tl.arange(0, QUERY_TILE)[:, None], tl.arange(0, DIM_TILE)[None, :]
    in_tile = (step < rows) & (column < HEAD_DIM)
    query_at = (token + step) * query_stride + head * HEAD_DIM + column
    query = tl.load(query_ptr + query_at, in_tile, 0.0)

    before = tl.load(seq_lens_ptr + request) - query_len + row_begin
    position = before + tl.arange(0, QUERY_TILE)
    first = tl.maximum(before - window + 1, 0)
    end = before + rows
    row_max = tl.full([QUERY_TILE], float("-inf"), tl.float32)
    row_sum = tl.zeros([QUERY_TILE], tl.float32)
    acc = tl.zeros([QUERY_TILE, DIM_TILE], tl.float32)
    for page in range(first // BLOCK_SIZE, tl.cdiv(end, BLOCK_SIZE)):
        begin = tl.maximum(page * BLOCK_SIZE, first)
        count = tl.minimum((page + 1) * BLOCK_SIZE, end) - begin
        block = tl.load(block_table_ptr + request * table_stride + page).to(tl.int64)
        slot = block * BLOCK_SIZE + begin % BLOCK_SIZE
        key = page_of(
            key_cache_ptr, slot, count, head // GROUP, num_kv_heads, HEAD_DIM, DIM_TILE, PAGE_TILE
        )
        scores = tl.dot(query, tl.trans(key.to(query.dtype)), input_precision="ieee") * scale
        lane = tl.arange(0, PAGE_TILE)
        age = position[:, None] - (begin + lane)[None, :]
        seen = (lane < count)[None, :] & (age >= 0) & (age < window)
        scores = tl.where(seen, scores, float("-inf"))
        value = page_of(
            value_cache_ptr, slot, count, head // GROUP, num_kv_heads, HEAD_DIM, DIM_TILE, PAGE_TILE
        )
        row_max, row_sum, acc = take_in(scores, value.to(query.dtype), row_max, row_sum, acc)

    output_at = ((token + step) * num_heads + head) * HEAD_DIM + column
    output = acc / tl.where(row_sum == 0.0, 1.0, row_sum)[:, None]
    tl.store(output_ptr + output_at, output.to(query.dtype), in_tile)
