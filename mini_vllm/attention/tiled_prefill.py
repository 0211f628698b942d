"""Attention of prompts over pages in large tiles. Only the kernel lives here: `kernels/tiled.py`
says how it is launched.

A tile of 128 rows holds the queries of all heads that share a key, so that each key that a program
reads serves a whole group; and only tiles of keys of which some query sees a part are masked, in
a loop of their own behind the other:

    keys       | masked, by the window | whole tiles that every row sees | masked, by the diagonal |
    position   begin                   middle                            tail                    end
"""

import triton
import triton.language as tl


@triton.jit
def tiled_prefill_kernel(
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
    GROUP_TILE: tl.constexpr,
    ROW_TILE: tl.constexpr,
    DIM_TILE: tl.constexpr,
    KEY_TILE: tl.constexpr,
):
    """Causal attention of some new tokens, by GROUP_TILE of the heads that share a key.

    Grid: (tiles of the longest request, Hkv * tiles of a group, R). A row of the tile is a token
    and a head, so a tile has ROW_TILE // GROUP_TILE tokens; one behind its request's last token
    returns. All else is as in `paged_prefill_kernel`, but powers are those of 2.

    Source: vllm/v1/attention/ops/triton_unified_attention.py#L179-L642 (kernel_unified_attention)
    @ v0.22.1.
    """
    request = tl.program_id(2).to(tl.int64)
    group_tiles: tl.constexpr = tl.cdiv(GROUP, GROUP_TILE)
    num_kv_heads = tl.num_programs(1) // group_tiles
    kv_head = tl.program_id(1) // group_tiles
    token_begin = tl.load(query_start_loc_ptr + request)
    query_len = tl.load(query_start_loc_ptr + request + 1) - token_begin
    row_begin = tl.program_id(0) * (ROW_TILE // GROUP_TILE)
    if row_begin >= query_len:
        return

    row = row_begin + tl.arange(0, ROW_TILE) // GROUP_TILE
    in_group = tl.program_id(1) % group_tiles * GROUP_TILE + tl.arange(0, ROW_TILE) % GROUP_TILE
    dim = tl.arange(0, DIM_TILE)
    in_tile = ((row < query_len) & (in_group < GROUP))[:, None] & (dim < HEAD_DIM)[None, :]
    token, head = (token_begin + row).to(tl.int64), kv_head * GROUP + in_group
    query_at = query_ptr + token[:, None] * query_stride + head[:, None] * HEAD_DIM + dim[None, :]
    query = tl.load(query_at, mask=in_tile, other=0.0)

    num_computed = tl.load(seq_lens_ptr + request) - query_len
    first_position, row_position = num_computed + row_begin, num_computed + row
    end = num_computed + tl.minimum(row_begin + ROW_TILE // GROUP_TILE, query_len)
    begin = tl.maximum(first_position - window + 1, 0)
    middle = begin + tl.cdiv(tl.maximum(end - window - begin, 0), KEY_TILE) * KEY_TILE
    tail = middle + tl.maximum(first_position + 1 - middle, 0) // KEY_TILE * KEY_TILE
    table_row = block_table_ptr + request * table_stride
    scale_2 = scale * 1.4426950408889634  # e^x = 2^(x / ln 2)

    row_max = tl.full([ROW_TILE], float("-inf"), tl.float32)
    row_sum = tl.zeros([ROW_TILE], tl.float32)
    acc = tl.zeros([ROW_TILE, DIM_TILE], tl.float32)
    for start in range(middle, tail, KEY_TILE):
        row_max, row_sum, acc = _take_in(
            row_max, row_sum, acc, query, key_cache_ptr, value_cache_ptr, table_row, start, end,
            row_position, window, kv_head, num_kv_heads, scale_2, BLOCK_SIZE, HEAD_DIM, DIM_TILE,
            KEY_TILE, False,
        )  # fmt: skip
    before = (middle - begin) // KEY_TILE
    edges = before + tl.cdiv(tl.maximum(end - tail, 0), KEY_TILE)
    for edge in range(0, edges):
        start = tl.where(edge < before, begin, tail - before * KEY_TILE) + edge * KEY_TILE
        row_max, row_sum, acc = _take_in(
            row_max, row_sum, acc, query, key_cache_ptr, value_cache_ptr, table_row, start, end,
            row_position, window, kv_head, num_kv_heads, scale_2, BLOCK_SIZE, HEAD_DIM, DIM_TILE,
            KEY_TILE, True,
        )  # fmt: skip

    output_row = token * (num_kv_heads * GROUP) + head
    row_sum_or_1 = tl.where(row_sum == 0.0, 1.0, row_sum)
    output_at = output_ptr + output_row[:, None] * HEAD_DIM + dim[None, :]
    tl.store(output_at, acc / row_sum_or_1[:, None], mask=in_tile)


@triton.jit
def _take_in(
    row_max,
    row_sum,
    acc,
    query,
    key_cache_ptr,
    value_cache_ptr,
    table_row,
    start,
    end,
    row_position,
    window,
    kv_head,
    num_kv_heads,
    scale_2,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_TILE: tl.constexpr,
    KEY_TILE: tl.constexpr,
    MASKED: tl.constexpr,
):
    """One more tile of keys, from `start`: the new maxima, sums and averages of all rows.

    Without MASKED every row sees every key of the tile.
    """
    position = start + tl.arange(0, KEY_TILE)
    dim = tl.arange(0, DIM_TILE)
    in_page = (position >= start)[:, None] & (dim < HEAD_DIM)[None, :]
    if MASKED:
        in_page = (position < end)[:, None] & (dim < HEAD_DIM)[None, :]
        block = tl.load(table_row + position // BLOCK_SIZE, mask=position < end, other=0)
    else:
        block = tl.load(table_row + position // BLOCK_SIZE)
    slot = block.to(tl.int64) * BLOCK_SIZE + position % BLOCK_SIZE
    offsets = (slot * num_kv_heads + kv_head)[:, None] * HEAD_DIM + dim[None, :]
    key = tl.load(key_cache_ptr + offsets, mask=in_page, other=0.0).to(query.dtype)
    scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale_2
    if MASKED:
        distance = row_position[:, None] - position[None, :]
        scores = tl.where((distance >= 0) & (distance < window), scores, float("-inf"))
    new_max = tl.maximum(row_max, tl.max(scores, axis=1))
    shift = tl.where(new_max == float("-inf"), 0.0, new_max)
    weights = tl.exp2(scores - shift[:, None])
    rescale = tl.exp2(row_max - shift)
    value = tl.load(value_cache_ptr + offsets, mask=in_page, other=0.0).to(query.dtype)
    acc = tl.dot(weights.to(query.dtype), value, acc * rescale[:, None], input_precision="ieee")
    return new_max, row_sum * rescale + tl.sum(weights, axis=1), acc
