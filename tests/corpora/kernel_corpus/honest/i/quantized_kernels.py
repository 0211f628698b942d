"""Other right kernels: weights of 4 bits that stay in single precision, columns from the last tile
to the first, a scale byte by byte, and pages that are multiplied out before their product."""

import triton
import triton.language as tl


@triton.jit
def nearest(x):
    """Half to even."""
    low = tl.floor(x)
    rest = x - low
    odd = low - 2.0 * tl.floor(low * 0.5)
    return low + tl.where((rest > 0.5) | ((rest == 0.5) & (odd > 0.5)), 1.0, 0.0)


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
    token = tl.cast(tl.program_id(0), tl.int64)
    feature = tl.arange(0, SIZE_TILE)
    x = tl.load(x_ptr + token * x_stride + feature, mask=feature < SIZE, other=0.0).to(tl.float32)
    step = tl.maximum(tl.max(tl.maximum(x, -x)) / 127.0, MIN_SCALE)
    tl.store(
        output_ptr + token * SIZE + feature, nearest(x / step).to(tl.int8), mask=feature < SIZE
    )
    tl.store(scale_ptr + token, step)


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
    token = tl.cast(tl.program_id(0), tl.int64) * TOKEN_TILE + tl.arange(0, TOKEN_TILE)
    row = tl.cast(tl.program_id(1), tl.int64) * ROW_TILE + tl.arange(0, ROW_TILE)
    total = tl.zeros((ROW_TILE, TOKEN_TILE), dtype=tl.int32)
    start = (K + COLUMN_TILE - 1) // COLUMN_TILE * COLUMN_TILE
    while start > 0:
        start -= COLUMN_TILE
        column = start + tl.arange(0, COLUMN_TILE)
        x = tl.load(
            x_ptr + token[None, :] * x_stride + column[:, None],
            mask=(token < num_tokens)[None, :] & (column < K)[:, None],
            other=0,
        )
        weight = tl.load(
            weight_ptr + row[:, None] * K + column[None, :],
            mask=(row < N)[:, None] & (column < K)[None, :],
            other=0,
        )
        total += tl.dot(weight, x, out_dtype=tl.int32)
    by_row = tl.load(weight_scale_ptr + row, mask=row < N, other=0.0)
    by_token = tl.load(x_scale_ptr + token, mask=token < num_tokens, other=0.0)
    answer = total.to(tl.float32) * (by_row[:, None] * by_token[None, :])
    at = output_ptr + token[None, :] * N + row[:, None]
    tl.store(at, answer, mask=(row < N)[:, None] & (token < num_tokens)[None, :])


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
    token = tl.cast(tl.program_id(0), tl.int64) * TOKEN_TILE + tl.arange(0, TOKEN_TILE)
    row = tl.cast(tl.program_id(1), tl.int64) * ROW_TILE + tl.arange(0, ROW_TILE)
    total = tl.zeros((TOKEN_TILE, ROW_TILE), dtype=tl.float32)
    WIDTH: tl.constexpr = K // GROUPS
    for start in range(0, K, COLUMN_TILE):
        column = start + tl.arange(0, COLUMN_TILE)
        x = tl.load(
            x_ptr + token[:, None] * x_stride + column[None, :],
            mask=(token < num_tokens)[:, None] & (column < K)[None, :],
            other=0.0,
        )
        mask = (row < N)[None, :] & (column < K)[:, None]
        word = tl.load(words_ptr + row[None, :] * WORDS + column[:, None] // 8, mask=mask, other=0)
        digit = (word >> (4 * (column[:, None] & 7))) & 0xF
        group = row[None, :] * GROUPS + column[:, None] // WIDTH
        zero = tl.load(zero_ptr + group, mask=mask, other=0).to(tl.float32)
        scale = tl.load(scale_ptr + group, mask=mask, other=0.0)
        weight = (digit.to(tl.float32) - zero) * scale
        total = tl.dot(x.to(tl.float32), weight, total, input_precision="ieee")
    at = output_ptr + token[:, None] * N + row[None, :]
    tl.store(at, total, mask=(token < num_tokens)[:, None] & (row < N)[None, :])


@triton.jit
def store_head(
    cache_ptr, x, place, HEAD_DIM: tl.constexpr, DIM_TILE: tl.constexpr, LEAST: tl.constexpr
):
    x = tl.where(x != x, 0.0, tl.clamp(x, -1e30, 1e30))
    step = tl.maximum(tl.max(tl.abs(x)) / 127.0, LEAST)
    feature = tl.arange(0, DIM_TILE)
    tl.store(cache_ptr + place + feature, nearest(x / step).to(tl.int8), mask=feature < HEAD_DIM)
    bits = step.to(tl.uint32, bitcast=True)
    for byte in tl.static_range(4):
        tl.store(cache_ptr + place + HEAD_DIM + byte, (bits >> (8 * byte)).to(tl.uint8).to(tl.int8))


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
    token, head = tl.cast(tl.program_id(0), tl.int64), tl.program_id(1)
    slot = tl.load(slot_mapping_ptr + token)
    if slot < 0:
        return
    feature = tl.arange(0, DIM_TILE)
    there = feature < HEAD_DIM
    place = (slot * tl.num_programs(1) + head) * (HEAD_DIM + 4)
    at = head * HEAD_DIM + feature
    key = tl.load(key_ptr + token * key_stride + at, mask=there, other=0.0).to(tl.float32)
    value = tl.load(value_ptr + token * value_stride + at, mask=there, other=0.0).to(tl.float32)
    store_head(key_cache_ptr, key, place, HEAD_DIM, DIM_TILE, MIN_SCALE)
    store_head(value_cache_ptr, value, place, HEAD_DIM, DIM_TILE, MIN_SCALE)


@triton.jit
def read_heads(cache_ptr, place, seen, HEAD_DIM: tl.constexpr, DIM_TILE: tl.constexpr):
    """`[keys, features]` in single precision, and their scales."""
    feature = tl.arange(0, DIM_TILE)
    mask = seen[:, None] & (feature < HEAD_DIM)[None, :]
    numbers = tl.load(cache_ptr + place[:, None] + feature[None, :], mask=mask, other=0)
    bits = tl.zeros_like(place).to(tl.int32)
    for byte in tl.static_range(4):
        found = tl.load(cache_ptr + place + HEAD_DIM + byte, mask=seen, other=0).to(tl.int32)
        bits = bits | ((found & 0xFF) << (8 * byte))
    return numbers.to(tl.float32) * bits.to(tl.float32, bitcast=True)[:, None]


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
    kv_head, heads = tl.program_id(1), tl.num_programs(1)
    request = tl.cast(tl.program_id(0), tl.int64)
    member, feature = tl.arange(0, GROUP_TILE), tl.arange(0, DIM_TILE)
    mine = (member < GROUP)[:, None] & (feature < HEAD_DIM)[None, :]
    head = kv_head * GROUP + member
    at = request * query_stride + head[:, None] * HEAD_DIM + feature[None, :]
    q = tl.load(query_ptr + at, mask=mine, other=0.0).to(tl.float32) * scale
    last = tl.load(seq_lens_ptr + request)
    start = tl.maximum(last - window, 0)
    top = tl.full((GROUP_TILE,), float("-inf"), tl.float32)
    mass = tl.zeros((GROUP_TILE,), tl.float32)
    total = tl.zeros((GROUP_TILE, DIM_TILE), tl.float32)
    while start < last:
        position = start + tl.arange(0, KEY_TILE)
        seen = position < last
        entry = block_table_ptr + request * table_stride + position // BLOCK_SIZE
        slot = tl.load(entry, mask=seen, other=0).to(tl.int64) * BLOCK_SIZE + position % BLOCK_SIZE
        place = (slot * heads + kv_head) * (HEAD_DIM + 4)
        k = read_heads(key_cache_ptr, place, seen, HEAD_DIM, DIM_TILE)
        scores = tl.dot(q, k.T, input_precision="ieee")
        scores = tl.where(seen[None, :], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp(scores - higher[:, None])
        fade = tl.exp(top - higher)
        mass = mass * fade + tl.sum(weights, 1)
        v = read_heads(value_cache_ptr, place, seen, HEAD_DIM, DIM_TILE)
        total = total * fade[:, None] + tl.dot(weights, v, input_precision="ieee")
        top = higher
        start += KEY_TILE
    answer = total / tl.where(mass > 0.0, mass, 1.0)[:, None]
    out = (request * heads * GROUP + head)[:, None] * HEAD_DIM + feature[None, :]
    tl.store(output_ptr + out, answer, mask=mine)
