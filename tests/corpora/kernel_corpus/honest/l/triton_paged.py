"""Another right way: heads in two halves of their features, two tiles of keys a turn, scores as
exponents of 2 with scale and log2(e) in one factor, offsets of 64 bits from the start. Rows of a
prefill see through a bias, and splits are reduced in two passes.

No load of a page has a mask: positions and features are clamped to what there is, and what should
not count is chosen away behind the load.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
PIECE = tl.constexpr(128)
FEW_SPLITS = tl.constexpr(8)


@triton.jit
def copy_row(to_ptr, from_ptr, ROW: tl.constexpr):
    """One row, piece by piece."""
    begin = 0
    while begin < ROW:
        column = begin + tl.arange(0, PIECE)
        inside = column < ROW
        tl.store(to_ptr + column, tl.load(from_ptr + column, mask=inside), mask=inside)
        begin += PIECE


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
    token = tl.program_id(axis=0).to(tl.int64)
    slot: tl.int64 = tl.load(slot_mapping_ptr + token)
    if slot == -1:
        return
    copy_row(value_cache_ptr + slot * ROW, value_ptr + token * value_stride, ROW)
    copy_row(key_cache_ptr + slot * ROW, key_ptr + token * key_stride, ROW)


@triton.jit
def half_of(ptr, offsets, HALF: tl.constexpr, HALF_TILE: tl.constexpr, COUNT: tl.constexpr):
    """`[N, HALF_TILE]`: COUNT features from each offset on, zeros behind them."""
    feature = tl.arange(0, HALF_TILE)
    near = tl.minimum(feature, COUNT - 1)
    found = tl.load(ptr + offsets[:, None] + near[None, :])
    return tl.where((feature < COUNT)[None, :], found, tl.zeros_like(found))


@triton.jit
def slots_of(table_ptr, position, BLOCK_SIZE: tl.constexpr):
    """The slots of positions that exist, as int64."""
    page = tl.load(table_ptr + position // BLOCK_SIZE).to(tl.int64)
    return page * BLOCK_SIZE + position % BLOCK_SIZE


@triton.jit
def online_softmax(scores, row_max, row_sum):
    """The same in powers of 2: scores come times log2(e)."""
    highest = tl.maximum(row_max, tl.max(scores, axis=1))
    base = tl.where(highest > float("-inf"), highest, 0.0)
    weights = tl.exp2(scores - base[:, None])
    rescale = tl.exp2(row_max - base)
    return weights, rescale, highest, tl.fma(row_sum, rescale, tl.sum(weights, axis=1))


@triton.jit
def attend(
    queries, more_queries, key_cache_ptr, value_cache_ptr, cache_row, bias, factor, state,
    HEAD_DIM: tl.constexpr, HALF: tl.constexpr, HALF_TILE: tl.constexpr,
):  # fmt: skip
    """One tile of keys more: `state` is maximum, sum and the two halves of what is summed."""
    row_max, row_sum, acc, more_acc = state
    offsets = cache_row * HEAD_DIM
    REST: tl.constexpr = HEAD_DIM - HALF
    key = half_of(key_cache_ptr, offsets, HALF, HALF_TILE, HALF).to(queries.dtype)
    more_key = half_of(key_cache_ptr + HALF, offsets, HALF, HALF_TILE, REST).to(queries.dtype)
    scores = tl.dot(queries, key.T, input_precision="ieee")
    scores = tl.dot(more_queries, more_key.T, acc=scores, input_precision="ieee")
    weights, rescale, row_max, row_sum = online_softmax(scores * factor + bias, row_max, row_sum)
    weights = weights.to(queries.dtype)
    value = half_of(value_cache_ptr, offsets, HALF, HALF_TILE, HALF).to(queries.dtype)
    more_value = half_of(value_cache_ptr + HALF, offsets, HALF, HALF_TILE, REST).to(queries.dtype)
    acc = acc * rescale[:, None] + tl.dot(weights, value, input_precision="ieee")
    more_acc = more_acc * rescale[:, None] + tl.dot(weights, more_value, input_precision="ieee")
    return row_max, row_sum, acc, more_acc


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
    HALF: tl.constexpr = (HEAD_DIM + 1) // 2
    HALF_TILE: tl.constexpr = max(DIM_TILE // 2, 16)
    request, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    split, kv_heads = tl.program_id(2), tl.num_programs(1).to(tl.int64)

    member = tl.arange(0, GROUP_TILE)
    head = kv_head * GROUP + tl.minimum(member, GROUP - 1)
    at = request * query_stride + head * HEAD_DIM
    queries = half_of(query_ptr, at, HALF, HALF_TILE, HALF)
    more_queries = half_of(query_ptr + HALF, at, HALF, HALF_TILE, HEAD_DIM - HALF)

    seq_len = tl.load(seq_lens_ptr + request)
    seen = tl.minimum(seq_len, window)
    tiles = tl.cdiv(seen, KEY_TILE)
    tiles_each = tl.cdiv(tiles, NUM_SPLITS)
    begin = seq_len - seen + split * tiles_each * KEY_TILE
    end = tl.minimum(begin + tiles_each * KEY_TILE, seq_len)
    table_ptr = block_table_ptr + request * table_stride

    row_max = tl.full([GROUP_TILE], float("-inf"), dtype=tl.float32)
    row_sum = tl.zeros([GROUP_TILE], dtype=tl.float32)
    acc = tl.zeros([GROUP_TILE, HALF_TILE], dtype=tl.float32)
    more_acc = tl.zeros([GROUP_TILE, HALF_TILE], dtype=tl.float32)
    for pair in range(begin, end, 2 * KEY_TILE):
        for which in tl.static_range(2):
            start = pair + which * KEY_TILE
            if start < end:
                position = start + tl.arange(0, KEY_TILE)
                slot = slots_of(table_ptr, tl.minimum(position, end - 1), BLOCK_SIZE)
                bias = tl.where(position < end, 0.0, float("-inf"))[None, :]
                row_max, row_sum, acc, more_acc = attend(
                    queries, more_queries, key_cache_ptr, value_cache_ptr,
                    slot * kv_heads + kv_head, bias, scale * LOG2_E,
                    (row_max, row_sum, acc, more_acc), HEAD_DIM, HALF, HALF_TILE,
                )  # fmt: skip

    divisor = tl.where(row_sum > 0.0, row_sum, 1.0)
    row = (request * kv_heads * GROUP + head) * NUM_SPLITS + split
    feature = tl.arange(0, HALF_TILE)
    out_ptr = output_ptr + row[:, None] * HEAD_DIM + feature[None, :]
    is_head = (member < GROUP)[:, None]
    tl.store(out_ptr, acc / divisor[:, None], mask=is_head & (feature < HALF)[None, :])
    is_rest = is_head & (HALF + feature < HEAD_DIM)[None, :]
    tl.store(out_ptr + HALF, more_acc / divisor[:, None], mask=is_rest)
    if NUM_SPLITS > 1:
        mass = (row_max + tl.log2(divisor)) * LN_2
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
    row = tl.program_id(0).to(tl.int64)
    first = row * NUM_SPLITS
    highest = tl.load(lse_ptr + first)
    for split in range(1, NUM_SPLITS):
        highest = tl.maximum(highest, tl.load(lse_ptr + first + split))
    if highest == float("-inf"):
        highest = 0.0

    dim = tl.arange(0, DIM_TILE)
    near = tl.minimum(dim, HEAD_DIM - 1)
    acc, total = tl.zeros([DIM_TILE], tl.float32), 0.0
    for some in range(0, NUM_SPLITS, FEW_SPLITS):
        for step in tl.static_range(FEW_SPLITS):
            if some + step < NUM_SPLITS:
                share = tl.exp(tl.load(lse_ptr + first + some + step) - highest)
                acc += share * tl.load(partial_ptr + (first + some + step) * HEAD_DIM + near)
                total += share
    if total == 0.0:
        total = 1.0
    tl.store(output_ptr + row * HEAD_DIM + dim, acc / total, mask=dim < HEAD_DIM)


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
    HALF: tl.constexpr = (HEAD_DIM + 1) // 2
    HALF_TILE: tl.constexpr = max(DIM_TILE // 2, 16)
    request, heads = tl.program_id(2).to(tl.int64), tl.num_programs(1).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    loc = tl.load(query_start_loc_ptr + request + tl.arange(0, 2)).to(tl.int64)
    token_end = tl.max(loc, axis=0)
    token_begin = tl.min(loc, axis=0)
    first_token = token_begin + tl.program_id(0) * QUERY_TILE
    if first_token < token_end:
        token = first_token + tl.arange(0, QUERY_TILE)
        at = tl.minimum(token, token_end - 1) * query_stride + head * HEAD_DIM
        queries = half_of(query_ptr, at, HALF, HALF_TILE, HALF)
        more_queries = half_of(query_ptr + HALF, at, HALF, HALF_TILE, HEAD_DIM - HALF)

        before = tl.load(seq_lens_ptr + request) - token_end  # a token's place less its number
        own = token + before
        last = tl.minimum(first_token + QUERY_TILE, token_end) - 1 + before
        begin = tl.maximum(first_token + before - window + 1, 0)
        table_ptr = block_table_ptr + request * table_stride
        kv_heads = heads // GROUP

        row_max = tl.full([QUERY_TILE], float("-inf"), dtype=tl.float32)
        row_sum = tl.zeros([QUERY_TILE], dtype=tl.float32)
        acc = tl.zeros([QUERY_TILE, HALF_TILE], dtype=tl.float32)
        more_acc = tl.zeros([QUERY_TILE, HALF_TILE], dtype=tl.float32)
        start = begin
        while start <= last:
            position = start + tl.arange(0, KEY_TILE)
            slot = slots_of(table_ptr, tl.minimum(position, last), BLOCK_SIZE)
            back = own[:, None] - position[None, :]
            bias = tl.where((back < 0) | (back >= window), float("-inf"), 0.0)
            row_max, row_sum, acc, more_acc = attend(
                queries, more_queries, key_cache_ptr, value_cache_ptr,
                slot * kv_heads + head // GROUP, bias, scale * LOG2_E,
                (row_max, row_sum, acc, more_acc), HEAD_DIM, HALF, HALF_TILE,
            )  # fmt: skip
            start += KEY_TILE

        feature = tl.arange(0, HALF_TILE)
        out_ptr = output_ptr + (token * heads + head)[:, None] * HEAD_DIM + feature[None, :]
        is_token, inverse = (token < token_end)[:, None], (1.0 / row_sum)[:, None]
        tl.store(out_ptr, acc * inverse, mask=is_token & (feature < HALF)[None, :])
        is_rest = is_token & (HALF + feature < HEAD_DIM)[None, :]
        tl.store(out_ptr + HALF, more_acc * inverse, mask=is_rest)
