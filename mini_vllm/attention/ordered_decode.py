"""Decode over pages in an order of requests. Only the kernel lives here: `kernels/ordered.py` says
how it is launched.

A GPU starts the programs of a grid one after the other, by its first axis first, and has room for
some of them at a time. A long request that comes last works alone at the end, while most of the GPU
has nothing to do. So programs are started by length, the longest first, and those of all heads
of a request together:

    requests  a: 900 tokens, b: 100, c: 500      order  [0, 2, 1]
    started   a0 a1 c0 c1 b0 b1                  two key/value heads each
"""

import triton
import triton.language as tl


@triton.jit
def ordered_decode_kernel(
    order_ptr,  # [R] int64: each request once, the first to start first
    output_ptr,  # [R, Hq, HEAD_DIM]
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
    GROUP_TILE: tl.constexpr,
    DIM_TILE: tl.constexpr,
    KEY_TILE: tl.constexpr,
):
    """Attention of one new token over its request's pages. Grid: (Hkv, R).

    What a program computes is what one of `paged_decode_kernel` does without splits, number by
    number; so the order changes no result.

    Source: vllm/v1/attention/ops/triton_decode_attention.py#L262-L442
    (_fwd_grouped_kernel_stage1) @ v0.22.1. Difference: there programs start in the batch's order.
    """
    kv_head = tl.program_id(0)
    num_kv_heads = tl.num_programs(0)
    request = tl.load(order_ptr + tl.program_id(1)).to(tl.int64)

    group = tl.arange(0, GROUP_TILE)
    dim = tl.arange(0, DIM_TILE)
    in_head = dim < HEAD_DIM
    in_tile = (group < GROUP)[:, None] & in_head[None, :]
    heads = kv_head * GROUP + group
    query_offsets = request * query_stride + heads[:, None] * HEAD_DIM + dim[None, :]
    query = tl.load(query_ptr + query_offsets, mask=in_tile, other=0.0)

    end = tl.load(seq_lens_ptr + request)
    begin = tl.maximum(end - window, 0)
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
        new_max = tl.maximum(row_max, tl.max(scores, axis=1))
        weights = tl.exp(scores - new_max[:, None])  # every tile has a visible key
        rescale = tl.exp(row_max - new_max)
        row_max, row_sum = new_max, row_sum * rescale + tl.sum(weights, axis=1)
        value = tl.load(value_cache_ptr + offsets, mask=in_page, other=0.0).to(query.dtype)
        acc = acc * rescale[:, None]
        acc = tl.dot(weights.to(query.dtype), value, acc, input_precision="ieee")

    row_sum_or_1 = tl.where(row_sum == 0.0, 1.0, row_sum)
    rows = request * num_kv_heads * GROUP + heads
    output_offsets = rows[:, None] * HEAD_DIM + dim[None, :]
    tl.store(output_ptr + output_offsets, acc / row_sum_or_1[:, None], mask=in_tile)
