"""Products of quantised numbers, and what makes them.

    per_token_quant_int8_kernel   a token's activations as int8, with their scale
    w8a8_gemm_kernel              int8 times int8; the scales are applied to the sum
    w4a16_gemm_kernel             activations times 4-bit weights, unpacked on the way
    store_kv_int8_kernel          keys and values into their pages, with a scale behind each head
    paged_decode_int8_kernel      attention of one new token over such pages

Only kernels live here: `kernels/quantization.py` says how each is launched. In a page, a head of
one token is HEAD_DIM numbers and the four bytes of their float32 scale, the lowest first.
"""

import triton
import triton.language as tl

ROUND = tl.constexpr(12582914.0)
"""1.5 * 2^23 + 2: near it float32 has no fractions, so adding and subtracting it rounds, half to
even, a number whose magnitude is below 2^22."""
LARGE = tl.constexpr(1e30)
"""In place of infinity."""


@triton.jit
def per_token_quant_int8_kernel(
    output_ptr,  # [T, SIZE] int8
    scale_ptr,  # [T] float32
    x_ptr,  # [T, SIZE], tokens `x_stride` apart
    x_stride,
    SIZE: tl.constexpr,
    SIZE_TILE: tl.constexpr,
    MIN_SCALE: tl.constexpr,
):
    """One token as int8: x / scale, rounded half to even; scale = largest |x| / 127. Grid: (T,).

    The scale is at least MIN_SCALE, so that a token of zeros stays zeros. In float32.
    Source: vllm/model_executor/layers/quantization/utils/int8_utils.py#L106-L156
    (per_token_quant_int8) @ v0.22.1.
    """
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, SIZE_TILE)
    inside = column < SIZE
    x = tl.load(x_ptr + token * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x), axis=0) / 127.0, MIN_SCALE)
    quantized = (x / scale + ROUND) - ROUND
    tl.store(scale_ptr + token, scale)
    tl.store(output_ptr + token * SIZE + column, quantized.to(tl.int8), mask=inside)


@triton.jit
def w8a8_gemm_kernel(
    output_ptr,  # [T, N]
    x_ptr,  # [T, K] int8, tokens `x_stride` apart
    weight_ptr,  # [N, K] int8
    x_scale_ptr,  # [T] float32
    weight_scale_ptr,  # [N] float32
    num_tokens,
    x_stride,
    N: tl.constexpr,
    K: tl.constexpr,
    TOKEN_TILE: tl.constexpr,
    ROW_TILE: tl.constexpr,
    COLUMN_TILE: tl.constexpr,
):
    """A tile of (x @ weight^T) * scale of the token * scale of the row. Grid: (tiles of T, of N).

    The sum is of whole numbers, in int32: no rounding until the scales.
    Source: vllm/model_executor/layers/quantization/compressed_tensors/triton_scaled_mm.py#L19-L136
    (scaled_mm_kernel) @ v0.22.1.
    """
    token = tl.program_id(0).to(tl.int64) * TOKEN_TILE + tl.arange(0, TOKEN_TILE)
    row = tl.program_id(1).to(tl.int64) * ROW_TILE + tl.arange(0, ROW_TILE)
    is_token, is_row = token < num_tokens, row < N
    total = tl.zeros([TOKEN_TILE, ROW_TILE], tl.int32)
    for start in range(0, K, COLUMN_TILE):
        column = start + tl.arange(0, COLUMN_TILE)
        inside = column < K
        x_mask, weight_mask = is_token[:, None] & inside[None, :], is_row[:, None] & inside[None, :]
        x = tl.load(x_ptr + token[:, None] * x_stride + column[None, :], mask=x_mask, other=0)
        weight_at = weight_ptr + row[:, None] * K + column[None, :]
        weight = tl.load(weight_at, mask=weight_mask, other=0)
        total = tl.dot(x, tl.trans(weight), acc=total, out_dtype=tl.int32)
    x_scale = tl.load(x_scale_ptr + token, mask=is_token, other=0.0)
    weight_scale = tl.load(weight_scale_ptr + row, mask=is_row, other=0.0)
    output = total.to(tl.float32) * x_scale[:, None] * weight_scale[None, :]
    output_at = output_ptr + token[:, None] * N + row[None, :]
    tl.store(output_at, output, mask=is_token[:, None] & is_row[None, :])


@triton.jit
def w4a16_gemm_kernel(
    output_ptr,  # [T, N]
    x_ptr,  # [T, K], tokens `x_stride` apart
    words_ptr,  # [N, WORDS] int32: eight columns a word, the first in its lowest bits
    scale_ptr,  # [N, GROUPS] float32
    zero_ptr,  # [N, GROUPS] uint8
    num_tokens,
    x_stride,
    N: tl.constexpr,
    K: tl.constexpr,
    WORDS: tl.constexpr,
    GROUPS: tl.constexpr,
    TOKEN_TILE: tl.constexpr,
    ROW_TILE: tl.constexpr,
    COLUMN_TILE: tl.constexpr,
):
    """A tile of x @ weight^T with weight = (number - zero) * scale. Grid: (tiles of T, of N).

    Groups are K / GROUPS columns wide; one may end inside a tile of columns. Weights are computed
    in float32 and rounded to the dtype of x; the sum is in float32.
    Source: vllm/model_executor/layers/quantization/awq_triton.py#L109-L227 (awq_gemm_kernel)
    @ v0.22.1.
    """
    token = tl.program_id(0).to(tl.int64) * TOKEN_TILE + tl.arange(0, TOKEN_TILE)
    row = tl.program_id(1).to(tl.int64) * ROW_TILE + tl.arange(0, ROW_TILE)
    is_token, is_row = token < num_tokens, row < N
    total = tl.zeros([TOKEN_TILE, ROW_TILE], tl.float32)
    for start in range(0, K, COLUMN_TILE):
        column = start + tl.arange(0, COLUMN_TILE)
        inside = column < K
        x_mask, weight_mask = is_token[:, None] & inside[None, :], is_row[:, None] & inside[None, :]
        x = tl.load(x_ptr + token[:, None] * x_stride + column[None, :], mask=x_mask, other=0.0)
        words_at = words_ptr + row[:, None] * WORDS + column[None, :] // 8
        words = tl.load(words_at, mask=weight_mask, other=0)
        numbers = (words >> (column[None, :] % 8 * 4)) & 15
        group = row[:, None] * GROUPS + column[None, :] // (K // GROUPS)
        scale = tl.load(scale_ptr + group, mask=weight_mask, other=0.0)
        zero = tl.load(zero_ptr + group, mask=weight_mask, other=0).to(tl.int32)
        weight = ((numbers - zero).to(tl.float32) * scale).to(x.dtype)
        total = tl.dot(x, tl.trans(weight), acc=total, input_precision="ieee")
    output_at = output_ptr + token[:, None] * N + row[None, :]
    tl.store(output_at, total, mask=is_token[:, None] & is_row[None, :])


@triton.jit
def finite(x):
    """`x` with 0 for NaN and LARGE for infinity: a page must never spoil its next owner."""
    return tl.where(x == x, tl.minimum(tl.maximum(x, -LARGE), LARGE), 0.0)


@triton.jit
def bytes_of_scale(scale, byte):
    """The bytes number `byte` of a float32, as int8; 0 is the lowest."""
    return ((scale.to(tl.int32, bitcast=True) >> (8 * byte)) & 255).to(tl.int8)


@triton.jit
def load_scales(cache_ptr, offsets, mask):
    """The float32 numbers `[M]` whose four bytes begin at `offsets` `[M]`; 0 where masked off."""
    byte = tl.arange(0, 4)
    found = tl.load(cache_ptr + offsets[:, None] + byte[None, :], mask=mask[:, None], other=0)
    bits = tl.sum((found.to(tl.int32) & 255) << (8 * byte)[None, :], axis=1)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def store_kv_int8_kernel(
    key_ptr,  # [T, Hkv, HEAD_DIM], tokens `key_stride` apart
    value_ptr,  # the same, `value_stride` apart
    key_cache_ptr,  # [num_slots, Hkv, HEAD_DIM + 4] int8
    value_cache_ptr,  # the same
    slot_mapping_ptr,  # [T] int64; -1 = do not store
    key_stride,
    value_stride,
    HEAD_DIM: tl.constexpr,
    DIM_TILE: tl.constexpr,
    MIN_SCALE: tl.constexpr,
):
    """One head of one token as int8, and its scale behind it. Grid: (T, Hkv).

    x is made `finite`. Then x / scale, rounded half to even, with scale = max(largest |x| / 127,
    MIN_SCALE) in float32; keys and values have scales of their own. `bytes_of_scale` gives a
    scale's four bytes.

    Source: vllm/v1/attention/ops/triton_reshape_and_cache_flash.py#L139-L236
    (_reshape_cache_per_token_head) @ v0.22.1.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    slot = tl.load(slot_mapping_ptr + token)
    if slot >= 0:
        column = tl.arange(0, DIM_TILE)
        inside = column < HEAD_DIM
        byte = tl.arange(0, 4)
        place = (slot * tl.num_programs(1) + head) * (HEAD_DIM + 4)

        key_at = key_ptr + token * key_stride + head * HEAD_DIM + column
        key = finite(tl.load(key_at, mask=inside, other=0.0).to(tl.float32))
        scale = tl.maximum(tl.max(tl.abs(key), axis=0) / 127.0, MIN_SCALE)
        rounded = (key / scale + ROUND) - ROUND
        tl.store(key_cache_ptr + place + column, rounded.to(tl.int8), mask=inside)
        tl.store(key_cache_ptr + place + HEAD_DIM + byte, bytes_of_scale(scale, byte))

        value_at = value_ptr + token * value_stride + head * HEAD_DIM + column
        value = finite(tl.load(value_at, mask=inside, other=0.0).to(tl.float32))
        scale = tl.maximum(tl.max(tl.abs(value), axis=0) / 127.0, MIN_SCALE)
        rounded = (value / scale + ROUND) - ROUND
        tl.store(value_cache_ptr + place + column, rounded.to(tl.int8), mask=inside)
        tl.store(value_cache_ptr + place + HEAD_DIM + byte, bytes_of_scale(scale, byte))


@triton.jit
def paged_decode_int8_kernel(
    output_ptr,  # [R, Hq, HEAD_DIM]
    query_ptr,  # [R, Hq, HEAD_DIM], requests `query_stride` apart
    key_cache_ptr,  # [num_slots, Hkv, HEAD_DIM + 4] int8
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
    order_ptr=None,  # [R] int64: each request once, the first to start first; None = 0, 1, ...
):
    """Attention of one new token over int8 pages. Grid: (R, Hkv).

    As in phase 04, tile by tile, for all GROUP query heads that share a key/value head. Numbers of
    a page are only cast. Their scales wait: a token's key scale multiplies its column of scores,
    its value scale its column of weights, for neither depends on the feature. `load_scales` reads
    them. `order_ptr` means what it means there.

    Source: vllm/v1/attention/ops/triton_unified_attention.py#L39-L55 (_cast_kv_tile) @ v0.22.1.
    """
    request = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    num_kv_heads = tl.num_programs(1)
    if order_ptr is not None:
        number = kv_head * tl.num_programs(0) + tl.program_id(0)
        request = tl.load(order_ptr + number // num_kv_heads)
        kv_head = number % num_kv_heads

    group = tl.arange(0, GROUP_TILE)
    dim = tl.arange(0, DIM_TILE)
    in_head = dim < HEAD_DIM
    in_tile = (group < GROUP)[:, None] & in_head[None, :]
    heads = kv_head * GROUP + group
    query_offsets = request * query_stride + heads[:, None] * HEAD_DIM + dim[None, :]
    query = tl.load(query_ptr + query_offsets, mask=in_tile, other=0.0)

    end = tl.load(seq_lens_ptr + request)
    row_max = tl.full([GROUP_TILE], float("-inf"), tl.float32)
    row_sum = tl.zeros([GROUP_TILE], tl.float32)
    acc = tl.zeros([GROUP_TILE, DIM_TILE], tl.float32)
    for start in range(tl.maximum(end - window, 0), end, KEY_TILE):
        position = start + tl.arange(0, KEY_TILE)
        visible = position < end
        table_entry = block_table_ptr + request * table_stride + position // BLOCK_SIZE
        block = tl.load(table_entry, mask=visible, other=0).to(tl.int64)
        slot = block * BLOCK_SIZE + position % BLOCK_SIZE
        place = (slot * num_kv_heads + kv_head) * (HEAD_DIM + 4)
        in_page = visible[:, None] & in_head[None, :]
        offsets = place[:, None] + dim[None, :]

        key = tl.load(key_cache_ptr + offsets, mask=in_page, other=0).to(query.dtype)
        key_scale = load_scales(key_cache_ptr, place + HEAD_DIM, visible) * scale
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * key_scale[None, :]
        scores = tl.where(visible[None, :], scores, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(scores, axis=1))
        weights = tl.exp(scores - new_max[:, None])
        rescale = tl.exp(row_max - new_max)
        row_max, row_sum = new_max, row_sum * rescale + tl.sum(weights, axis=1)

        value = tl.load(value_cache_ptr + offsets, mask=in_page, other=0).to(query.dtype)
        value_scale = load_scales(value_cache_ptr, place + HEAD_DIM, visible)
        weights = (weights * value_scale[None, :]).to(query.dtype)
        acc = tl.dot(weights, value, acc * rescale[:, None], input_precision="ieee")

    rows = request * num_kv_heads * GROUP + heads
    row_sum_or_1 = tl.where(row_sum == 0.0, 1.0, row_sum)
    output_offsets = rows[:, None] * HEAD_DIM + dim[None, :]
    tl.store(output_ptr + output_offsets, acc / row_sum_or_1[:, None], mask=in_tile)
