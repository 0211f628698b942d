"""Attention over pages as Triton kernels. Only kernels live here: `kernels/attention.py` says how
each is launched, with which grid and tiles.

    store_kv_kernel        new keys and values into their slots
    online_softmax         one step of a softmax that sees its row tile by tile
    paged_decode_kernel    one new token per request, over its pages, optionally in splits
    reduce_splits_kernel   the splits' partial results into one
    paged_prefill_kernel   many new tokens per request, causal

The cache is flat here: slot s = block_id * BLOCK_SIZE + offset holds `[Hkv, HEAD_DIM]` numbers.
Tiles have a power of two as their size, so those named `*_TILE` may be longer than what they hold;
every load and store masks the rest. Scores, sums and accumulators are float32 whatever the dtype.

Shapes: T new tokens, R requests, Hq query heads in groups of GROUP that share one of Hkv
key/value heads, S splits of a context.
"""

import triton
import triton.language as tl


@triton.jit
def store_kv_kernel(
    key_ptr,  # [T, Hkv * HEAD_DIM], rows `key_stride` apart
    value_ptr,  # the same, rows `value_stride` apart
    key_cache_ptr,  # [num_slots, Hkv * HEAD_DIM]
    value_cache_ptr,  # the same
    slot_mapping_ptr,  # [T] int64; -1 = do not store
    key_stride,
    value_stride,
    ROW: tl.constexpr,  # Hkv * HEAD_DIM
    ROW_TILE: tl.constexpr,
):
    """Copy the key and the value of one token into its slot. Grid: (T,).

    A slot number times ROW exceeds 32 bits in a cache of a few GiB, so it must stay an int64.
    Source: vllm/v1/attention/ops/triton_reshape_and_cache_flash.py#L18-L124
    (reshape_and_cache_kernel_flash) @ v0.22.1.
    """
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping_ptr + token)
    if slot >= 0:
        column = tl.arange(0, ROW_TILE)
        inside = column < ROW
        key = tl.load(key_ptr + token * key_stride + column, mask=inside, other=0.0)
        value = tl.load(value_ptr + token * value_stride + column, mask=inside, other=0.0)
        tl.store(key_cache_ptr + slot * ROW + column, key, mask=inside)
        tl.store(value_cache_ptr + slot * ROW + column, value, mask=inside)


@triton.jit
def online_softmax(scores, row_max, row_sum):
    """Take in one more tile of a softmax that never sees its whole row.

    `scores` `[M, N]` float32 holds -inf where a key is not visible; `row_max` and `row_sum` `[M]`
    describe the tiles so far (at first -inf and 0). Returns `(weights, rescale, row_max, row_sum)`:

        weights [M, N]   exp(score - new maximum), 0 where not visible
        rescale [M]      what an accumulator of the tiles so far must be multiplied by
        row_max, row_sum [M]   both including this tile

    A row that has seen no visible key yet has the maximum -inf, and -inf - -inf is NaN: such a row
    subtracts 0 instead.
    """
    new_max = tl.maximum(row_max, tl.max(scores, axis=1))
    shift = tl.where(new_max == float("-inf"), 0.0, new_max)
    weights = tl.exp(scores - shift[:, None])
    rescale = tl.exp(row_max - shift)
    return weights, rescale, new_max, row_sum * rescale + tl.sum(weights, axis=1)


@triton.jit
def paged_decode_kernel(
    output_ptr,  # [R, Hq, NUM_SPLITS, HEAD_DIM]
    lse_ptr,  # [R, Hq, NUM_SPLITS] float32; not touched if NUM_SPLITS is 1
    query_ptr,  # [R, Hq, HEAD_DIM], requests `query_stride` apart
    key_cache_ptr,  # [num_slots, Hkv, HEAD_DIM]
    value_cache_ptr,  # the same
    block_table_ptr,  # [R, max_blocks] int32, rows `table_stride` apart
    seq_lens_ptr,  # [R] int32; 0 = an inert row, whose output is 0
    query_stride,
    table_stride,
    scale,
    window,  # only the last `window` tokens are visible
    BLOCK_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    GROUP_TILE: tl.constexpr,
    DIM_TILE: tl.constexpr,
    KEY_TILE: tl.constexpr,
    order_ptr=None,  # [R] int64: each request once, the first to start first; None = 0, 1, ...
):
    """Attention of one new token over its request's pages. Grid: (R, Hkv, NUM_SPLITS).

    One program serves all GROUP query heads that share a key/value head, so that each key and
    value is read once. The visible tokens are cut into NUM_SPLITS stretches of whole tiles; this
    program reads one of them and writes the softmax average over it, and with more than one split
    also log(sum(exp(scores))), -inf for an empty stretch, by which the splits are combined.

        visible tokens   |<-- split 0 -->|<-- split 1 -->|<- 2 ->|       stretch = tiles per split
        tiles            | KEY_TILE | ...                              * KEY_TILE

    A GPU starts programs by the first axis of the grid, so program (i, j) is number j * R + i of a
    split. With `order_ptr` the first Hkv of them are all heads of the first request of the order,
    and so on; which program does the work changes no number.

    Source: vllm/v1/attention/ops/triton_decode_attention.py#L262-L442
    (_fwd_grouped_kernel_stage1) @ v0.22.1.
    """
    request = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    num_kv_heads = tl.num_programs(1)
    if order_ptr is not None:
        place = kv_head * tl.num_programs(0) + tl.program_id(0)
        request = tl.load(order_ptr + place // num_kv_heads)
        kv_head = place % num_kv_heads

    group = tl.arange(0, GROUP_TILE)
    dim = tl.arange(0, DIM_TILE)
    in_head = dim < HEAD_DIM
    in_tile = (group < GROUP)[:, None] & in_head[None, :]
    heads = kv_head * GROUP + group
    query_offsets = request * query_stride + heads[:, None] * HEAD_DIM + dim[None, :]
    query = tl.load(query_ptr + query_offsets, mask=in_tile, other=0.0)

    seq_len = tl.load(seq_lens_ptr + request)
    first = tl.maximum(seq_len - window, 0)
    stretch = tl.cdiv(tl.cdiv(seq_len - first, NUM_SPLITS), KEY_TILE) * KEY_TILE
    begin = first + split * stretch
    end = tl.minimum(begin + stretch, seq_len)

    row_max = tl.full([GROUP_TILE], float("-inf"), tl.float32)
    row_sum = tl.zeros([GROUP_TILE], tl.float32)
    acc = tl.zeros([GROUP_TILE, DIM_TILE], tl.float32)
    for start in range(begin, end, KEY_TILE):
        position = start + tl.arange(0, KEY_TILE)
        visible = position < end
        table_entry = block_table_ptr + request * table_stride + position // BLOCK_SIZE
        block = tl.load(table_entry, mask=visible, other=0).to(tl.int64)
        slot = block * BLOCK_SIZE + position % BLOCK_SIZE
        offsets = (slot * num_kv_heads + kv_head)[:, None] * HEAD_DIM + dim[None, :]
        in_page = visible[:, None] & in_head[None, :]
        key = tl.load(key_cache_ptr + offsets, mask=in_page, other=0.0).to(query.dtype)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        scores = tl.where(visible[None, :], scores, float("-inf"))
        weights, rescale, row_max, row_sum = online_softmax(scores, row_max, row_sum)
        value = tl.load(value_cache_ptr + offsets, mask=in_page, other=0.0).to(query.dtype)
        acc = acc * rescale[:, None]
        acc = tl.dot(weights.to(query.dtype), value, acc, input_precision="ieee")

    row_sum_or_1 = tl.where(row_sum == 0.0, 1.0, row_sum)
    rows = (request * num_kv_heads * GROUP + heads) * NUM_SPLITS + split
    output_offsets = rows[:, None] * HEAD_DIM + dim[None, :]
    tl.store(output_ptr + output_offsets, acc / row_sum_or_1[:, None], mask=in_tile)
    if NUM_SPLITS > 1:
        tl.store(lse_ptr + rows, row_max + tl.log(row_sum_or_1), mask=group < GROUP)


@triton.jit
def reduce_splits_kernel(
    output_ptr,  # [R, Hq, HEAD_DIM]
    partial_ptr,  # [R, Hq, NUM_SPLITS, HEAD_DIM] float32
    lse_ptr,  # [R, Hq, NUM_SPLITS] float32; -inf for an empty split
    HEAD_DIM: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    DIM_TILE: tl.constexpr,
    SPLIT_TILE: tl.constexpr,
):
    """Combine the splits of one query head. Grid: (R * Hq,).

    A split's share is exp(lse) of the sum of all: averages are weighed by how much softmax mass
    they stand for. If all splits are empty, the output is 0.
    Source: vllm/v1/attention/ops/triton_decode_attention.py#L549-L612 (_fwd_kernel_stage2)
    @ v0.22.1.
    """
    row = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, SPLIT_TILE)
    dim = tl.arange(0, DIM_TILE)
    in_splits = split < NUM_SPLITS
    in_head = dim < HEAD_DIM
    lse = tl.load(lse_ptr + row * NUM_SPLITS + split, mask=in_splits, other=float("-inf"))
    largest = tl.max(lse, axis=0)
    share = tl.exp(lse - tl.where(largest == float("-inf"), 0.0, largest))
    total = tl.sum(share, axis=0)
    offsets = (row * NUM_SPLITS + split)[:, None] * HEAD_DIM + dim[None, :]
    in_tile = in_splits[:, None] & in_head[None, :]
    partial = tl.load(partial_ptr + offsets, mask=in_tile, other=0.0)
    output = tl.sum(partial * share[:, None], axis=0) / tl.where(total == 0.0, 1.0, total)
    tl.store(output_ptr + row * HEAD_DIM + dim, output, mask=in_head)


@triton.jit
def paged_prefill_kernel(
    output_ptr,  # [T, Hq, HEAD_DIM]
    query_ptr,  # [T, Hq, HEAD_DIM], tokens `query_stride` apart
    key_cache_ptr,  # [num_slots, Hkv, HEAD_DIM]
    value_cache_ptr,  # the same
    block_table_ptr,  # [R, max_blocks] int32, rows `table_stride` apart
    query_start_loc_ptr,  # [R + 1] int32: where each request's new tokens begin
    seq_lens_ptr,  # [R] int32: context including the new tokens
    query_stride,
    table_stride,
    scale,
    window,  # a token sees itself and the window - 1 before it
    BLOCK_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_TILE: tl.constexpr,
    QUERY_TILE: tl.constexpr,
    KEY_TILE: tl.constexpr,
):
    """Causal attention of QUERY_TILE new tokens and one head over their request's pages.

    Grid: (tiles of the longest request, Hq, R); a tile behind its request's last token returns.
    The new tokens are the last of the context, so row i stands at seq_len - query_len + i. Keys
    are read from the first that any row sees to the last that any row sees:

        query_len 4, seq_len 9, KEY_TILE 4, window 4      position  0 1 2 3 4 5 6 7 8
                                                     row 0 (at 5)       x x x x
        first = 5 - 4 + 1 = 2                        row 3 (at 8)             x x x x

    Source: vllm/v1/attention/ops/triton_unified_attention.py#L179-L642 (kernel_unified_attention)
    @ v0.22.1.
    """
    request = tl.program_id(2).to(tl.int64)
    head = tl.program_id(1)
    num_heads = tl.num_programs(1)
    token_begin = tl.load(query_start_loc_ptr + request)
    query_len = tl.load(query_start_loc_ptr + request + 1) - token_begin
    row_begin = tl.program_id(0) * QUERY_TILE
    if row_begin >= query_len:
        return

    row = row_begin + tl.arange(0, QUERY_TILE)
    dim = tl.arange(0, DIM_TILE)
    in_head = dim < HEAD_DIM
    in_tile = (row < query_len)[:, None] & in_head[None, :]
    token = (token_begin + row).to(tl.int64)
    query_offsets = token[:, None] * query_stride + head * HEAD_DIM + dim[None, :]
    query = tl.load(query_ptr + query_offsets, mask=in_tile, other=0.0)

    num_computed = tl.load(seq_lens_ptr + request) - query_len
    row_position = num_computed + row
    first = tl.maximum(num_computed + row_begin - window + 1, 0)
    end = num_computed + tl.minimum(row_begin + QUERY_TILE, query_len)
    row_max = tl.full([QUERY_TILE], float("-inf"), tl.float32)
    row_sum = tl.zeros([QUERY_TILE], tl.float32)
    acc = tl.zeros([QUERY_TILE, DIM_TILE], tl.float32)
    for start in range(first, end, KEY_TILE):
        position = start + tl.arange(0, KEY_TILE)
        in_context = position < end
        table_entry = block_table_ptr + request * table_stride + position // BLOCK_SIZE
        block = tl.load(table_entry, mask=in_context, other=0).to(tl.int64)
        slot = block * BLOCK_SIZE + position % BLOCK_SIZE
        cache_row = slot * (num_heads // GROUP) + head // GROUP
        offsets = cache_row[:, None] * HEAD_DIM + dim[None, :]
        in_page = in_context[:, None] & in_head[None, :]
        key = tl.load(key_cache_ptr + offsets, mask=in_page, other=0.0).to(query.dtype)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        distance = row_position[:, None] - position[None, :]
        scores = tl.where((distance >= 0) & (distance < window), scores, float("-inf"))
        weights, rescale, row_max, row_sum = online_softmax(scores, row_max, row_sum)
        value = tl.load(value_cache_ptr + offsets, mask=in_page, other=0.0).to(query.dtype)
        acc = acc * rescale[:, None]
        acc = tl.dot(weights.to(query.dtype), value, acc, input_precision="ieee")

    output_offsets = (token[:, None] * num_heads + head) * HEAD_DIM + dim[None, :]
    row_sum_or_1 = tl.where(row_sum == 0.0, 1.0, row_sum)
    tl.store(output_ptr + output_offsets, acc / row_sum_or_1[:, None], mask=in_tile)
