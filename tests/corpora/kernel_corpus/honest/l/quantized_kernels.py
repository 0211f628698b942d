"""Another right way: half steps told from the rest by hand, products on their side from the last
column to the first, words opened eight numbers at a time, a head's features in two halves."""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
HUGE = tl.constexpr(1e30)


@triton.jit
def nearest(x):
    """Rounded half to even."""
    below = tl.floor(x)
    rest = x - below
    is_odd = below - 2.0 * tl.floor(below * 0.5) != 0.0
    return below + tl.where((rest > 0.5) | ((rest == 0.5) & is_odd), 1.0, 0.0)


@triton.jit
def quantize(x, LEAST: tl.constexpr):
    """Whole numbers, and the scale that they stand for."""
    scale = tl.maximum(tl.maximum(tl.max(x, 0), -tl.min(x, 0)) / 127.0, LEAST)
    return nearest(x / scale).to(tl.int8), scale


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
    near = tl.minimum(column, SIZE - 1)
    numbers, scale = quantize(tl.load(x_ptr + token * x_stride + near).to(tl.float32), MIN_SCALE)
    tl.store(output_ptr + token * SIZE + column, numbers, mask=column < SIZE)
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
    x_row = x_ptr + tl.minimum(token, num_tokens - 1) * x_stride
    weight_row = weight_ptr + tl.minimum(row, N - 1) * K
    turned = tl.zeros((ROW_TILE, TOKEN_TILE), tl.int32)
    tile = tl.cdiv(K, COLUMN_TILE) - 1
    while tile >= 0:
        column = tile * COLUMN_TILE + tl.arange(0, COLUMN_TILE)
        inside = column < K
        weight = tl.load(weight_row[:, None] + column[None, :], mask=inside[None, :], other=0)
        x = tl.load(x_row[None, :] + column[:, None], mask=inside[:, None], other=0)
        turned += tl.dot(weight, x, out_dtype=tl.int32)
        tile -= 1
    is_token, is_row = token < num_tokens, row < N
    x_scale = tl.load(x_scale_ptr + token, mask=is_token)
    weight_scale = tl.load(weight_scale_ptr + row, mask=is_row)
    product = turned.to(tl.float32) * weight_scale[:, None] * x_scale[None, :]
    at = output_ptr + token[None, :] * N + row[:, None]
    tl.store(at, product, mask=is_row[:, None] & is_token[None, :])


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
    WORD_TILE: tl.constexpr = COLUMN_TILE // 8
    WIDTH: tl.constexpr = K // GROUPS
    token = tl.program_id(0).to(tl.int64) * TOKEN_TILE + tl.arange(0, TOKEN_TILE)
    row = tl.program_id(1).to(tl.int64) * ROW_TILE + tl.arange(0, ROW_TILE)
    near_row = tl.minimum(row, N - 1)
    near_token = tl.minimum(token, num_tokens - 1)
    total = tl.zeros((TOKEN_TILE, ROW_TILE), tl.float32)
    for start in tl.range(0, WORDS, WORD_TILE):
        word = start + tl.arange(0, WORD_TILE)
        at = words_ptr + near_row[:, None] * WORDS + word[None, :]
        words = tl.load(at, mask=(word < WORDS)[None, :], other=0)
        opened = (words[:, :, None] >> (4 * tl.arange(0, 8))[None, None, :]) & 0xF
        numbers = tl.reshape(opened, (ROW_TILE, COLUMN_TILE))
        column = start * 8 + tl.arange(0, COLUMN_TILE)
        near_column = tl.minimum(column, K - 1)
        group = near_row[:, None] * GROUPS + (near_column // WIDTH)[None, :]
        zero = tl.load(zero_ptr + group).to(tl.int32)
        weight = (numbers - zero).to(tl.float32) * tl.load(scale_ptr + group)
        x_at = x_ptr + near_token[:, None] * x_stride + near_column[None, :]
        x = tl.load(x_at)
        x = tl.where((column < K)[None, :], x, tl.zeros_like(x))
        total = tl.dot(x, weight.to(x.dtype).T, total, input_precision="ieee")
    at = output_ptr + token[:, None] * N + row[None, :]
    tl.store(at, total, mask=(token < num_tokens)[:, None] & (row < N)[None, :])


@triton.jit
def store_head(cache_ptr, x_ptr, HEAD_DIM: tl.constexpr, TILE: tl.constexpr, LEAST: tl.constexpr):
    """One head, and the four bytes of its scale, one by one."""
    feature = tl.arange(0, TILE)
    x = tl.load(x_ptr + feature, mask=feature < HEAD_DIM, other=0.0).to(tl.float32)
    x = tl.where(x != x, 0.0, tl.clamp(x, -HUGE, HUGE))
    numbers, scale = quantize(x, LEAST)
    tl.store(cache_ptr + feature, numbers, mask=feature < HEAD_DIM)
    bits = scale.to(tl.uint32, bitcast=True)
    for byte in tl.static_range(4):
        one = ((bits >> (8 * byte)) & 0xFF).to(tl.uint8).to(tl.int8, bitcast=True)
        tl.store(cache_ptr + HEAD_DIM + byte, one)


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
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    slot = tl.load(slot_mapping_ptr + token)
    if slot < 0:
        return
    place = (slot * tl.num_programs(1) + head) * (HEAD_DIM + 4)
    own = head * HEAD_DIM
    key_at, value_at = key_ptr + token * key_stride + own, value_ptr + token * value_stride + own
    store_head(key_cache_ptr + place, key_at, HEAD_DIM, DIM_TILE, MIN_SCALE)
    store_head(value_cache_ptr + place, value_at, HEAD_DIM, DIM_TILE, MIN_SCALE)


@triton.jit
def scales_at(cache_ptr, offsets):
    """float32 numbers from their bytes, the highest first."""
    bits = tl.load(cache_ptr + offsets + 3).to(tl.uint8, bitcast=True).to(tl.uint32)
    for back in tl.static_range(1, 4):
        byte = tl.load(cache_ptr + offsets + (3 - back)).to(tl.uint8, bitcast=True)
        bits = bits * 256 + byte.to(tl.uint32)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def half_of(ptr, offsets, COUNT: tl.constexpr, TILE: tl.constexpr):
    """`[N, TILE]`: COUNT features from each offset on, zeros behind them."""
    feature = tl.arange(0, TILE)
    found = tl.load(ptr + offsets[:, None] + tl.minimum(feature, COUNT - 1)[None, :])
    return tl.where((feature < COUNT)[None, :], found, tl.zeros_like(found))


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
    HALF: tl.constexpr = (HEAD_DIM + 1) // 2
    REST: tl.constexpr = HEAD_DIM - HALF
    TILE: tl.constexpr = max(DIM_TILE // 2, 16)
    request, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    kv_heads = tl.num_programs(1).to(tl.int64)
    member = tl.arange(0, GROUP_TILE)
    head = kv_head * GROUP + tl.minimum(member, GROUP - 1)
    at = request * query_stride + head * HEAD_DIM
    queries = half_of(query_ptr, at, HALF, TILE)
    more_queries = half_of(query_ptr + HALF, at, REST, TILE)

    end = tl.load(seq_lens_ptr + request)
    row_max = tl.full([GROUP_TILE], float("-inf"), tl.float32)
    row_sum = tl.zeros([GROUP_TILE], tl.float32)
    acc = tl.zeros([GROUP_TILE, TILE], tl.float32)
    more_acc = tl.zeros([GROUP_TILE, TILE], tl.float32)
    start = tl.maximum(end - window, 0)
    while start < end:
        position = start + tl.arange(0, KEY_TILE)
        near = tl.minimum(position, end - 1)
        page = tl.load(block_table_ptr + request * table_stride + near // BLOCK_SIZE).to(tl.int64)
        slot = page * BLOCK_SIZE + near % BLOCK_SIZE
        place = (slot * kv_heads + kv_head) * (HEAD_DIM + 4)
        key = half_of(key_cache_ptr, place, HALF, TILE).to(queries.dtype)
        more_key = half_of(key_cache_ptr + HALF, place, REST, TILE).to(queries.dtype)
        scores = tl.dot(queries, key.T, input_precision="ieee")
        scores = tl.dot(more_queries, more_key.T, scores, input_precision="ieee")
        scores *= (scales_at(key_cache_ptr + HEAD_DIM, place) * (scale * LOG2_E))[None, :]
        scores = tl.where((position < end)[None, :], scores, float("-inf"))
        highest = tl.maximum(row_max, tl.max(scores, 1))
        weights = tl.exp2(scores - highest[:, None])
        rescale = tl.exp2(row_max - highest)
        row_max, row_sum = highest, row_sum * rescale + tl.sum(weights, 1)
        weights *= scales_at(value_cache_ptr + HEAD_DIM, place)[None, :]
        weights = weights.to(queries.dtype)
        value = half_of(value_cache_ptr, place, HALF, TILE).to(queries.dtype)
        more_value = half_of(value_cache_ptr + HALF, place, REST, TILE).to(queries.dtype)
        acc = acc * rescale[:, None] + tl.dot(weights, value, input_precision="ieee")
        more_acc = tl.dot(weights, more_value, more_acc * rescale[:, None], input_precision="ieee")
        start += KEY_TILE

    divisor = tl.where(row_sum > 0.0, row_sum, 1.0)[:, None]
    feature, is_head = tl.arange(0, TILE)[None, :], (member < GROUP)[:, None]
    out_ptr = output_ptr + (request * kv_heads * GROUP + head)[:, None] * HEAD_DIM + feature
    tl.store(out_ptr, acc / divisor, mask=is_head & (feature < HALF))
    tl.store(out_ptr + HALF, more_acc / divisor, mask=is_head & (feature < REST))
