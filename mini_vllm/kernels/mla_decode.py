"""Attention of one token a request over latents as they are, on a GPU. Only the kernel lives here:
`kernels/mixers.py` says how it is launched.

A latent is key and value at once, for all heads: c, with the rotated part k_r behind it. So a tile
of latents is read once for a tile of heads, and c takes part in both products:

    scores = q_c c^T + q_r k_r^T        acc <- acc e^(old max - new max) + weights c
"""

import triton
import triton.language as tl


@triton.jit
def mla_decode_kernel(
    output_ptr,  # [R, NUM_HEADS, S, LATENT]
    lse_ptr,  # [R, NUM_HEADS, S] float32
    query_ptr,  # [R, NUM_HEADS, LATENT + ROPE], requests `query_stride` apart
    latents_ptr,  # [num_slots, LATENT + ROPE]
    block_table_ptr,  # [R, max_blocks] int32, rows `table_stride` apart
    seq_lens_ptr,  # [R] int32; 0 = an inert row, whose output is 0
    query_stride,
    table_stride,
    scale,
    BLOCK_SIZE: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    LATENT: tl.constexpr,
    ROPE: tl.constexpr,
    HEAD_TILE: tl.constexpr,
    LATENT_TILE: tl.constexpr,
    ROPE_TILE: tl.constexpr,
    KEY_TILE: tl.constexpr,
    order_ptr=None,  # [R] int64: each request once, the first to start first; None = 0, 1, ...
):
    """The average of c over a stretch of a context, for a tile of heads. Grid: (R, head tiles, S).

    A context is cut into S stretches of whole tiles. A program writes the softmax average over its
    stretch, and log(sum(exp(scores))), -inf for an empty one, by which stretches are combined.

    With `order_ptr` programs start request by request, as those of `paged_decode_kernel` do. All
    head tiles of a request then start together, and they read the same latents.

    Source: vllm/v1/attention/ops/triton_decode_attention.py#L262-L442
    (_fwd_grouped_kernel_stage1) @ v0.22.1.
    """
    request = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    split, num_splits = tl.program_id(2), tl.num_programs(2)
    if order_ptr is not None:
        place = tile * tl.num_programs(0) + tl.program_id(0)
        request = tl.load(order_ptr + place // tl.num_programs(1))
        tile = place % tl.num_programs(1)
    head = tile * HEAD_TILE + tl.arange(0, HEAD_TILE)
    dim = tl.arange(0, LATENT_TILE)
    rope_dim = tl.arange(0, ROPE_TILE)
    is_head, in_latent, in_rope = head < NUM_HEADS, dim < LATENT, rope_dim < ROPE
    in_output = is_head[:, None] & in_latent[None, :]
    query_at = query_ptr + request * query_stride + head[:, None] * (LATENT + ROPE)
    query = tl.load(query_at + dim[None, :], mask=in_output, other=0.0)
    rope_mask = is_head[:, None] & in_rope[None, :]
    rope_query = tl.load(query_at + LATENT + rope_dim[None, :], mask=rope_mask, other=0.0)

    seq_len = tl.load(seq_lens_ptr + request)
    stretch = tl.cdiv(tl.cdiv(seq_len, num_splits), KEY_TILE) * KEY_TILE
    begin = split * stretch
    end = tl.minimum(begin + stretch, seq_len)
    row_max = tl.full([HEAD_TILE], float("-inf"), tl.float32)
    row_sum = tl.zeros([HEAD_TILE], tl.float32)
    acc = tl.zeros([HEAD_TILE, LATENT_TILE], tl.float32)
    for start in range(begin, end, KEY_TILE):
        position = start + tl.arange(0, KEY_TILE)
        visible = position < end
        table_entry = block_table_ptr + request * table_stride + position // BLOCK_SIZE
        block = tl.load(table_entry, mask=visible, other=0).to(tl.int64)
        slot = block * BLOCK_SIZE + position % BLOCK_SIZE
        latent_at = latents_ptr + slot[:, None] * (LATENT + ROPE)
        in_page = visible[:, None] & in_latent[None, :]
        c = tl.load(latent_at + dim[None, :], mask=in_page, other=0.0).to(query.dtype)
        in_page = visible[:, None] & in_rope[None, :]
        k_r = tl.load(latent_at + LATENT + rope_dim[None, :], mask=in_page, other=0.0)
        scores = tl.dot(query, tl.trans(c), input_precision="ieee")
        k_r = tl.trans(k_r.to(query.dtype))
        scores = tl.dot(rope_query, k_r, acc=scores, input_precision="ieee") * scale
        scores = tl.where(visible[None, :], scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, axis=1))
        weights = tl.exp(scores - new_max[:, None])
        rescale = tl.exp(row_max - new_max)
        row_max, row_sum = new_max, row_sum * rescale + tl.sum(weights, axis=1)
        acc = acc * rescale[:, None]
        acc = tl.dot(weights.to(query.dtype), c, acc=acc, input_precision="ieee")

    row_sum_or_1 = tl.where(row_sum == 0.0, 1.0, row_sum)
    row = (request * NUM_HEADS + head) * num_splits + split
    output_at = output_ptr + row[:, None] * LATENT + dim[None, :]
    tl.store(output_at, acc / row_sum_or_1[:, None], mask=in_output)
    tl.store(lse_ptr + row, row_max + tl.log(row_sum_or_1), mask=is_head)
