"""Another right way: no `tl.dot` in decode, the newest tiles first, and two loops in prefill, one
over tiles that every row sees and one over the rest.

The running maximum never falls below a large negative number, so nothing is ever -inf - -inf. In an
order of requests the last head of each comes first.
"""

import triton
import triton.language as tl

LOWEST = tl.constexpr(-1.0e30)
FEW_KEYS = tl.constexpr(4)


@triton.jit
def copy_row(source_ptr, target_ptr, ROW: tl.constexpr, ROW_TILE: tl.constexpr):
    column = tl.arange(0, ROW_TILE)
    tl.store(target_ptr + column, tl.load(source_ptr + column, column < ROW), column < ROW)


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
    if slot < 0:
        return
    copy_row(value_ptr + token * value_stride, value_cache_ptr + slot * ROW, ROW, ROW_TILE)
    copy_row(key_ptr + token * key_stride, key_cache_ptr + slot * ROW, ROW, ROW_TILE)


@triton.jit
def online_softmax(scores, row_max, row_sum):
    tile_max = tl.maximum(tl.max(scores, axis=1), LOWEST)
    new_max = tl.maximum(row_max, tile_max)
    weights = tl.exp(scores - tile_max[:, None]) * tl.exp(tile_max - new_max)[:, None]
    rescale = tl.exp(row_max - new_max)
    return weights, rescale, new_max, tl.fma(row_sum, rescale, tl.sum(weights, axis=1))


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
    order_ptr=None,
):
    split = tl.program_id(2)
    num_kv_heads = tl.num_programs(1)
    if order_ptr is None:
        kv_head = tl.program_id(1)
        request = tl.program_id(0).to(tl.int64)
    else:
        begun = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
        kv_head = num_kv_heads - 1 - begun % num_kv_heads
        request = tl.load(order_ptr + begun // num_kv_heads)
    member = tl.arange(0, GROUP_TILE)
    dim = tl.arange(0, DIM_TILE)
    in_head = dim < HEAD_DIM
    in_tile = (member < GROUP)[:, None] & in_head[None, :]
    row = request * query_stride + (kv_head * GROUP + member)[:, None] * HEAD_DIM
    query = tl.load(query_ptr + row + dim[None, :], mask=in_tile, other=0.0).to(tl.float32) * scale

    seq_len = tl.load(seq_lens_ptr + request)
    first = tl.maximum(seq_len - window, 0)
    tiles = tl.cdiv(seq_len - first, NUM_SPLITS * KEY_TILE)
    begin = first + split * tiles * KEY_TILE
    end = tl.minimum(begin + tiles * KEY_TILE, seq_len)
    row_max = tl.full([GROUP_TILE], LOWEST, tl.float32)
    row_sum = tl.zeros([GROUP_TILE], tl.float32)
    acc = tl.zeros([GROUP_TILE, DIM_TILE], tl.float32)
    for done in range(0, end - begin, FEW_KEYS):
        position = end - done - 1 - tl.arange(0, FEW_KEYS)
        mine = position >= begin
        page = tl.where(mine, position, begin) // BLOCK_SIZE
        block = tl.load(block_table_ptr + request * table_stride + page, mask=mine, other=0)
        slot = block.to(tl.int64) * BLOCK_SIZE + position % BLOCK_SIZE
        offsets = (slot * num_kv_heads + kv_head)[:, None] * HEAD_DIM + dim[None, :]
        in_page = mine[:, None] & in_head[None, :]
        key = tl.load(key_cache_ptr + offsets, mask=in_page, other=0.0).to(tl.float32)
        scores = tl.sum(query[:, None, :] * key[None, :, :], axis=2)
        scores = tl.where(mine[None, :], scores, float("-inf"))
        weights, rescale, row_max, row_sum = online_softmax(scores, row_max, row_sum)
        value = tl.load(value_cache_ptr + offsets, mask=in_page, other=0.0).to(tl.float32)
        new = tl.sum(weights[:, :, None] * value[None, :, :], axis=1)
        acc = acc * rescale[:, None] + new

    empty = row_sum == 0.0
    output = tl.where(empty[:, None], 0.0, acc / row_sum[:, None])
    rows = (request * num_kv_heads * GROUP + kv_head * GROUP + member) * NUM_SPLITS + split
    tl.store(output_ptr + rows[:, None] * HEAD_DIM + dim[None, :], output, mask=in_tile)
    if NUM_SPLITS > 1:
        lse = tl.where(empty, float("-inf"), row_max + tl.log(row_sum))
        tl.store(lse_ptr + rows, lse, mask=member < GROUP)


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
    dim = tl.arange(0, DIM_TILE)
    inside = (dim < HEAD_DIM)[:, None] & (split < NUM_SPLITS)[None, :]
    lse = tl.load(lse_ptr + row * NUM_SPLITS + split, mask=split < NUM_SPLITS, other=float("-inf"))
    shift = tl.maximum(tl.max(lse, axis=0), LOWEST)
    share = tl.exp(lse - shift)
    share = share / tl.maximum(tl.sum(share, axis=0), 1.0e-30)
    offsets = (row * NUM_SPLITS + split)[None, :] * HEAD_DIM + dim[:, None]
    partial = tl.load(partial_ptr + offsets, mask=inside, other=0.0)
    output = tl.sum(partial * share[None, :], axis=1)
    tl.store(output_ptr + row * HEAD_DIM + dim, output, mask=dim < HEAD_DIM)


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
    tile = tl.program_id(0)
    head = tl.program_id(1)
    request = tl.program_id(2).to(tl.int64)
    num_heads = tl.num_programs(1)
    begin = tl.load(query_start_loc_ptr + request) + tile * QUERY_TILE
    stop = tl.load(query_start_loc_ptr + request + 1)
    if begin < stop:
        behind = tl.load(seq_lens_ptr + request) - stop  # from a token's number to its position
        token = begin + tl.arange(0, QUERY_TILE)
        dim = tl.arange(0, DIM_TILE)
        in_head = (dim < HEAD_DIM)[None, :]
        in_tile = (token < stop)[:, None] & in_head
        rows = token.to(tl.int64)[:, None]
        query_ptrs = query_ptr + rows * query_stride + head * HEAD_DIM + dim[None, :]
        query = tl.load(query_ptrs, mask=in_tile, other=0.0)

        low = tl.maximum(begin + behind + 1 - window, 0)
        high = tl.minimum(begin + QUERY_TILE, stop) + behind
        # Keys that the first row sees are behind no row, and if they are in the window of the
        # last row they are in all windows: those tiles need no mask.
        clear = tl.maximum(high - window, 0)
        clear = low + tl.cdiv(clear - low, KEY_TILE) * KEY_TILE
        plain = tl.maximum((begin + behind + 1 - clear) // KEY_TILE, 0) * KEY_TILE
        row_max = tl.full([QUERY_TILE], LOWEST, tl.float32)
        row_sum = tl.zeros([QUERY_TILE], tl.float32)
        acc = tl.zeros([QUERY_TILE, DIM_TILE], tl.float32)
        for start in range(low, high, KEY_TILE):
            keys = start + tl.arange(0, KEY_TILE)
            whole = (start >= clear) & (start < clear + plain)
            here = keys < high
            page = block_table_ptr + request * table_stride + keys // BLOCK_SIZE
            block = tl.load(page, mask=here, other=0).to(tl.int64)
            slot = block * BLOCK_SIZE + keys % BLOCK_SIZE
            offsets = (slot * (num_heads // GROUP) + head // GROUP)[:, None] * HEAD_DIM
            offsets += dim[None, :]
            key = tl.load(key_cache_ptr + offsets, mask=here[:, None] & in_head, other=0.0)
            scores = tl.dot(query, tl.trans(key.to(query.dtype)), input_precision="ieee") * scale
            if not whole:
                ahead = keys[None, :] - (token + behind)[:, None]
                scores = tl.where((ahead <= 0) & (-ahead < window), scores, float("-inf"))
            weights, rescale, row_max, row_sum = online_softmax(scores, row_max, row_sum)
            value = tl.load(value_cache_ptr + offsets, mask=here[:, None] & in_head, other=0.0)
            new = tl.dot(weights.to(query.dtype), value.to(query.dtype), input_precision="ieee")
            acc = acc * rescale[:, None] + new

        output = acc / tl.where(row_sum == 0.0, 1.0, row_sum)[:, None]
        output_ptrs = output_ptr + (rows * num_heads + head) * HEAD_DIM + dim[None, :]
        tl.store(output_ptrs, output, mask=in_tile)
