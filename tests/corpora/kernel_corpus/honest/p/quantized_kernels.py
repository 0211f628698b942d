"""Tiles of weights stand on their side, and the cache of bytes is read in float32 throughout."""

import triton
import triton.language as tl

ROUND = tl.constexpr(12582914.0)
LARGE = tl.constexpr(1e30)


@triton.jit
def rounded(x):
    return (x + ROUND) - ROUND


@triton.jit
def per_token_quant_int8_kernel(
    output_ptr,
    scale_ptr,
    x_ptr,
    x_stride,
    SIZE: tl.constexpr,
    SIZE_TILE: tl.constexpr,
    MIN_SCALE: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, SIZE_TILE)
    x = tl.load(x_ptr + token * x_stride + column, mask=column < SIZE, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x), axis=0) / 127.0, MIN_SCALE)
    tl.store(scale_ptr + token, scale)
    tl.store(output_ptr + token * SIZE + column, rounded(x / scale).to(tl.int8), mask=column < SIZE)


@triton.jit
def w8a8_gemm_kernel(
    output_ptr,
    x_ptr,
    weight_ptr,
    x_scale_ptr,
    weight_scale_ptr,
    num_tokens,
    x_stride,
    N: tl.constexpr,
    K: tl.constexpr,
    TOKEN_TILE: tl.constexpr,
    ROW_TILE: tl.constexpr,
    COLUMN_TILE: tl.constexpr,
):
    token = (tl.program_id(0) * TOKEN_TILE + tl.arange(0, TOKEN_TILE)).to(tl.int64)
    row = (tl.program_id(1) * ROW_TILE + tl.arange(0, ROW_TILE)).to(tl.int64)
    is_token, is_row = token < num_tokens, row < N
    total = tl.zeros((ROW_TILE, TOKEN_TILE), dtype=tl.int32)
    for tile in range(tl.cdiv(K, COLUMN_TILE)):
        column = tile * COLUMN_TILE + tl.arange(0, COLUMN_TILE)
        w = tl.load(
            weight_ptr + row[:, None] * K + column[None, :],
            mask=is_row[:, None] & (column[None, :] < K),
            other=0,
        )
        x = tl.load(
            x_ptr + token[None, :] * x_stride + column[:, None],
            mask=is_token[None, :] & (column[:, None] < K),
            other=0,
        )
        total += tl.dot(w, x, out_dtype=tl.int32)
    by_row = tl.load(weight_scale_ptr + row, mask=is_row, other=0.0)
    by_token = tl.load(x_scale_ptr + token, mask=is_token, other=0.0)
    y = total.to(tl.float32) * by_token[None, :] * by_row[:, None]
    tl.store(
        output_ptr + token[None, :] * N + row[:, None],
        y.to(output_ptr.dtype.element_ty),
        mask=is_token[None, :] & is_row[:, None],
    )


@triton.jit
def w4a16_gemm_kernel(
    output_ptr,
    x_ptr,
    words_ptr,
    scale_ptr,
    zero_ptr,
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
    token = (tl.program_id(0) * TOKEN_TILE + tl.arange(0, TOKEN_TILE)).to(tl.int64)
    row = (tl.program_id(1) * ROW_TILE + tl.arange(0, ROW_TILE)).to(tl.int64)
    is_token, is_row = token < num_tokens, row < N
    total = tl.zeros((TOKEN_TILE, ROW_TILE), dtype=tl.float32)
    for first in range(0, K, COLUMN_TILE):
        column = first + tl.arange(0, COLUMN_TILE)
        inside = column < K
        is_weight = inside[:, None] & is_row[None, :]
        words = tl.load(
            words_ptr + row[None, :] * WORDS + (column // 8)[:, None], mask=is_weight, other=0
        )
        number = (words >> (4 * (column % 8))[:, None]) & 15
        group = row[None, :] * GROUPS + (column // (K // GROUPS))[:, None]
        zero = tl.load(zero_ptr + group, mask=is_weight, other=0).to(tl.int32)
        scale = tl.load(scale_ptr + group, mask=is_weight, other=0.0)
        weight = (number - zero).to(tl.float32) * scale
        x = tl.load(
            x_ptr + token[:, None] * x_stride + column[None, :],
            mask=is_token[:, None] & inside[None, :],
            other=0.0,
        )
        total = tl.dot(x, weight.to(x.dtype), total, input_precision="ieee")
    tl.store(
        output_ptr + token[:, None] * N + row[None, :],
        total.to(output_ptr.dtype.element_ty),
        mask=is_token[:, None] & is_row[None, :],
    )


@triton.jit
def finite(x):
    return tl.where(x == x, tl.minimum(tl.maximum(x, -LARGE), LARGE), 0.0)


@triton.jit
def bytes_of_scale(scale, byte):
    return ((scale.to(tl.int32, bitcast=True) >> (8 * byte)) & 255).to(tl.int8)


@triton.jit
def load_scales(cache_ptr, offsets, mask):
    byte = tl.arange(0, 4)
    found = tl.load(cache_ptr + offsets[:, None] + byte[None, :], mask=mask[:, None], other=0)
    bits = tl.sum((found.to(tl.int32) & 255) << (8 * byte)[None, :], axis=1)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def store_half(
    source_ptr, cache_ptr, place, HEAD_DIM: tl.constexpr, DIM_TILE: tl.constexpr, MIN_SCALE
):
    feature = tl.arange(0, DIM_TILE)
    inside = feature < HEAD_DIM
    x = finite(tl.load(source_ptr + feature, mask=inside, other=0.0).to(tl.float32))
    scale = tl.maximum(tl.max(tl.abs(x), axis=0) / 127.0, MIN_SCALE)
    tl.store(cache_ptr + place + feature, rounded(x / scale).to(tl.int8), mask=inside)
    byte = tl.arange(0, 4)
    tl.store(cache_ptr + place + HEAD_DIM + byte, bytes_of_scale(scale, byte))


@triton.jit
def store_kv_int8_kernel(
    key_ptr,
    value_ptr,
    key_cache_ptr,
    value_cache_ptr,
    slot_mapping_ptr,
    key_stride,
    value_stride,
    HEAD_DIM: tl.constexpr,
    DIM_TILE: tl.constexpr,
    MIN_SCALE: tl.constexpr,
):
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slot_mapping_ptr + token)
    if slot < 0:
        return
    place = (slot * tl.num_programs(1) + head) * (HEAD_DIM + 4)
    key = key_ptr + token * key_stride + head * HEAD_DIM
    value = value_ptr + token * value_stride + head * HEAD_DIM
    store_half(key, key_cache_ptr, place, HEAD_DIM, DIM_TILE, MIN_SCALE)
    store_half(value, value_cache_ptr, place, HEAD_DIM, DIM_TILE, MIN_SCALE)


@triton.jit
def paged_decode_int8_kernel(
    output_ptr,
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
    GROUP_TILE: tl.constexpr,
    DIM_TILE: tl.constexpr,
    KEY_TILE: tl.constexpr,
):
    request, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    heads = tl.num_programs(1)
    length = tl.load(seq_lens_ptr + request)
    feature = tl.arange(0, DIM_TILE)
    member = tl.arange(0, GROUP_TILE)
    mine = (member[:, None] < GROUP) & (feature[None, :] < HEAD_DIM)
    place = (head * GROUP + member[:, None]) * HEAD_DIM + feature[None, :]
    query = tl.load(query_ptr + request * query_stride + place, mask=mine, other=0.0).to(tl.float32)
    best = tl.full((GROUP_TILE,), float("-inf"), dtype=tl.float32)
    norm = tl.zeros((GROUP_TILE,), dtype=tl.float32)
    total = tl.zeros((GROUP_TILE, DIM_TILE), dtype=tl.float32)
    oldest = tl.maximum(length - window, 0)
    for first in range(oldest, length, KEY_TILE):
        position = first + tl.arange(0, KEY_TILE)
        seen = position < length
        page = tl.load(
            block_table_ptr + request * table_stride + position // BLOCK_SIZE, mask=seen, other=0
        ).to(tl.int64)
        start = ((page * BLOCK_SIZE + position % BLOCK_SIZE) * heads + head) * (HEAD_DIM + 4)
        take = seen[:, None] & (feature[None, :] < HEAD_DIM)
        key = tl.load(key_cache_ptr + start[:, None] + feature[None, :], mask=take, other=0)
        key_scale = load_scales(key_cache_ptr, start + HEAD_DIM, seen)
        scores = tl.dot(query, tl.trans(key.to(tl.float32)), input_precision="ieee")
        scores = tl.where(seen[None, :], scores * key_scale[None, :] * scale, float("-inf"))
        higher = tl.maximum(best, tl.max(scores, axis=1))
        weights = tl.exp(scores - higher[:, None])
        shrink = tl.exp(best - higher)
        norm = norm * shrink + tl.sum(weights, axis=1)
        value = tl.load(value_cache_ptr + start[:, None] + feature[None, :], mask=take, other=0)
        weights *= load_scales(value_cache_ptr, start + HEAD_DIM, seen)[None, :]
        more = tl.dot(weights, value.to(tl.float32), input_precision="ieee")
        total = total * shrink[:, None] + more
        best = higher
    output = total / tl.where(norm > 0, norm, 1.0)[:, None]
    target = output_ptr + request * heads * GROUP * HEAD_DIM + place
    tl.store(target, output.to(output_ptr.dtype.element_ty), mask=mine)
