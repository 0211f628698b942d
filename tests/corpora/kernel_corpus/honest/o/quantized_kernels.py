"""Another right way: the largest and the smallest instead of a largest magnitude, rounding by what
is left over, products on their side, and words spread over a third axis."""

import triton
import triton.language as tl

BIG = tl.constexpr(1e30)


@triton.jit
def whole(x):
    below = tl.floor(x)
    rest = x - below
    odd = below - 2.0 * tl.floor(below * 0.5)
    up = (rest > 0.5) | ((rest == 0.5) & (odd == 1.0))
    return (below + up.to(tl.float32)).to(tl.int8)


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
    inside = column < SIZE
    x = tl.load(x_ptr + token * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    largest = tl.maximum(tl.max(x, axis=0), -tl.min(x, axis=0))
    scale = tl.maximum(largest / 127.0, MIN_SCALE)
    tl.store(output_ptr + token * SIZE + column, whole(x / scale), mask=inside)
    tl.store(scale_ptr + token, scale)


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
    token = tl.program_id(0).to(tl.int64) * TOKEN_TILE + tl.arange(0, TOKEN_TILE)
    row = tl.program_id(1).to(tl.int64) * ROW_TILE + tl.arange(0, ROW_TILE)
    is_token, is_row = token < num_tokens, row < N
    column = tl.arange(0, COLUMN_TILE)
    x_at = x_ptr + token[None, :] * x_stride + column[:, None]
    weight_at = weight_ptr + row[:, None] * K + column[None, :]
    total = tl.zeros([ROW_TILE, TOKEN_TILE], tl.int32)
    for left in range(K, 0, -COLUMN_TILE):
        x = tl.load(x_at, mask=(column < left)[:, None] & is_token[None, :], other=0)
        weight = tl.load(weight_at, mask=is_row[:, None] & (column < left)[None, :], other=0)
        total += tl.dot(weight, x, out_dtype=tl.int32)
        x_at += COLUMN_TILE
        weight_at += COLUMN_TILE
    x_scale = tl.load(x_scale_ptr + token, mask=is_token, other=0.0)
    weight_scale = tl.load(weight_scale_ptr + row, mask=is_row, other=0.0)
    output = total.to(tl.float32) * weight_scale[:, None] * x_scale[None, :]
    at = output_ptr + token[None, :] * N + row[:, None]
    tl.store(at, output, mask=is_row[:, None] & is_token[None, :])


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
    token = tl.program_id(0).to(tl.int64) * TOKEN_TILE + tl.arange(0, TOKEN_TILE)
    row = tl.program_id(1).to(tl.int64) * ROW_TILE + tl.arange(0, ROW_TILE)
    is_token, is_row = token < num_tokens, row < N
    total = tl.zeros([ROW_TILE, TOKEN_TILE], tl.float32)
    for start in range(0, K, COLUMN_TILE):
        column = start + tl.arange(0, COLUMN_TILE)
        inside = column < K
        word = start // 8 + tl.arange(0, COLUMN_TILE // 8)
        word_mask = is_row[:, None] & (word < WORDS)[None, :]
        words = tl.load(words_ptr + row[:, None] * WORDS + word[None, :], mask=word_mask, other=0)
        shift = tl.arange(0, 8) * 4
        spread = (words[:, :, None] >> shift[None, None, :]) & 15
        numbers = tl.reshape(spread, (ROW_TILE, COLUMN_TILE))
        mask = is_row[:, None] & inside[None, :]
        group = row[:, None] * GROUPS + (column // (K // GROUPS))[None, :]
        scale = tl.load(scale_ptr + group, mask=mask, other=0.0)
        zero = tl.load(zero_ptr + group, mask=mask, other=0).to(tl.float32)
        x_mask = inside[:, None] & is_token[None, :]
        x = tl.load(x_ptr + token[None, :] * x_stride + column[:, None], mask=x_mask, other=0.0)
        weight = (numbers.to(tl.float32) - zero) * scale
        total = tl.dot(weight.to(x.dtype), x, total, input_precision="ieee")
    at = output_ptr + token[None, :] * N + row[:, None]
    tl.store(at, total, mask=is_row[:, None] & is_token[None, :])


@triton.jit
def store_head(new_ptr, cache_ptr, HEAD_DIM: tl.constexpr, TILE: tl.constexpr, LEAST: tl.constexpr):
    column = tl.arange(0, TILE)
    inside = column < HEAD_DIM
    x = tl.load(new_ptr + column, mask=inside, other=0.0).to(tl.float32)
    x = tl.where(x != x, 0.0, x)
    x = tl.where(x > BIG, BIG, tl.where(x < -BIG, -BIG, x))
    largest = tl.maximum(tl.max(x, axis=0), -tl.min(x, axis=0))
    scale = tl.maximum(largest / 127.0, LEAST)
    tl.store(cache_ptr + column, whole(x / scale), mask=inside)
    bits = scale.to(tl.uint32, bitcast=True)
    for byte in tl.static_range(4):
        tl.store(cache_ptr + HEAD_DIM + byte, (bits & 255).to(tl.int8))
        bits = bits >> 8


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
    key_ptr += token * key_stride + head * HEAD_DIM
    value_ptr += token * value_stride + head * HEAD_DIM
    store_head(key_ptr, key_cache_ptr + place, HEAD_DIM, DIM_TILE, MIN_SCALE)
    store_head(value_ptr, value_cache_ptr + place, HEAD_DIM, DIM_TILE, MIN_SCALE)


@triton.jit
def scale_at(cache_ptr, at, mask):
    bits = tl.load(cache_ptr + at, mask=mask, other=0).to(tl.int32) & 255
    for byte in tl.static_range(1, 4):
        found = tl.load(cache_ptr + at + byte, mask=mask, other=0).to(tl.int32) & 255
        bits = bits | (found << (8 * byte))
    return bits.to(tl.float32, bitcast=True)


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
    request, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    dim, group = tl.arange(0, DIM_TILE), tl.arange(0, GROUP_TILE)
    is_dim, is_head = dim < HEAD_DIM, group < GROUP
    head = kv_head * GROUP + group
    mask = is_dim[:, None] & is_head[None, :]
    at = request * query_stride + head[None, :] * HEAD_DIM + dim[:, None]
    query = tl.load(query_ptr + at, mask=mask, other=0.0)
    end = tl.load(seq_lens_ptr + request)
    most = tl.full([GROUP_TILE], float("-inf"), tl.float32)
    mass = tl.zeros([GROUP_TILE], tl.float32)
    acc = tl.zeros([DIM_TILE, GROUP_TILE], tl.float32)
    for start in range(tl.maximum(end - window, 0), end, KEY_TILE):
        position = start + tl.arange(0, KEY_TILE)
        seen = position < end
        entry = request * table_stride + position // BLOCK_SIZE
        block = tl.load(block_table_ptr + entry, mask=seen, other=0).to(tl.int64)
        token = block * BLOCK_SIZE + position % BLOCK_SIZE
        place = (token * tl.num_programs(1) + kv_head) * (HEAD_DIM + 4)
        in_page = seen[:, None] & is_dim[None, :]
        key = tl.load(key_cache_ptr + place[:, None] + dim[None, :], mask=in_page, other=0)
        size = scale_at(key_cache_ptr, place + HEAD_DIM, seen) * (scale * 1.4426950408889634)
        scores = tl.dot(key.to(query.dtype), query, input_precision="ieee") * size[:, None]
        scores = tl.where(seen[:, None], scores, float("-inf"))
        higher = tl.maximum(most, tl.max(scores, axis=0))
        fade = tl.exp2(most - higher)
        weights = tl.exp2(scores - higher[None, :])
        mass = mass * fade + tl.sum(weights, axis=0)
        most = higher
        value = tl.load(value_cache_ptr + place[:, None] + dim[None, :], mask=in_page, other=0)
        weights = weights * scale_at(value_cache_ptr, place + HEAD_DIM, seen)[:, None]
        both = tl.dot(
            tl.trans(value.to(query.dtype)), weights.to(query.dtype), input_precision="ieee"
        )
        acc = acc * fade[None, :] + both
    at = (request * tl.num_programs(1) * GROUP + head)[None, :] * HEAD_DIM + dim[:, None]
    tl.store(output_ptr + at, acc / tl.where(mass > 0.0, mass, 1.0)[None, :], mask=mask)
