"""Other right kernels: two sums that take turns, digits along a third axis, one store for both
pages, the newest keys first, and everything of a page multiplied out before its product."""

import triton
import triton.language as tl

MAGIC = tl.constexpr(12582912.0)


@triton.jit
def nearest(x):
    """Half to even, for magnitudes below 2^22."""
    return (x + MAGIC) - MAGIC


@triton.jit
def per_token_quant_int8_kernel(
    output_ptr, scale_ptr, x_ptr, x_stride,
    SIZE: tl.constexpr, SIZE_TILE: tl.constexpr, MIN_SCALE: tl.constexpr,
):  # fmt: skip
    programs = tl.num_programs(0)
    for row in range(tl.program_id(0), programs, programs):
        at = tl.arange(0, SIZE_TILE)
        x = tl.load(x_ptr + row.to(tl.int64) * x_stride + at, at < SIZE, 0.0).to(tl.float32)
        highest, lowest = x.max(0), x.min(0)
        scale = max(max(highest, -lowest) / 127.0, MIN_SCALE)
        tl.store(scale_ptr + row, scale)
        steps = nearest(x / scale).to(tl.int32)
        tl.store(output_ptr + row.to(tl.int64) * SIZE + at, steps, at < SIZE)


@triton.jit
def w8a8_gemm_kernel(
    output_ptr, x_ptr, weight_ptr, x_scale_ptr, weight_scale_ptr, num_tokens, x_stride,
    N: tl.constexpr, K: tl.constexpr, TOKEN_TILE: tl.constexpr, ROW_TILE: tl.constexpr,
    COLUMN_TILE: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64) * TOKEN_TILE + tl.arange(0, TOKEN_TILE)[None, :]
    row = tl.program_id(1).to(tl.int64) * ROW_TILE + tl.arange(0, ROW_TILE)[:, None]
    even = tl.zeros([ROW_TILE, TOKEN_TILE], tl.int32)
    odd = tl.zeros([ROW_TILE, TOKEN_TILE], tl.int32)
    for start in range(0, K, 2 * COLUMN_TILE):
        for turn in tl.static_range(2):
            column = start + turn * COLUMN_TILE + tl.arange(0, COLUMN_TILE)
            weight_mask = (row < N) & (column < K)[None, :]
            weight = tl.load(weight_ptr + row * K + column[None, :], weight_mask, 0)
            x_mask = (column < K)[:, None] & (token < num_tokens)
            x = tl.load(x_ptr + token * x_stride + column[:, None], x_mask, 0)
            if turn == 0:
                even = tl.dot(weight, x, even, out_dtype=tl.int32)
            else:
                odd = tl.dot(weight, x, odd, out_dtype=tl.int32)
    x_scale = tl.load(x_scale_ptr + token, token < num_tokens, 0.0)
    weight_scale = tl.load(weight_scale_ptr + row, row < N, 0.0)
    product = (even + odd).to(tl.float32) * (x_scale * weight_scale)
    tl.store(output_ptr + token * N + row, product, (row < N) & (token < num_tokens))


@triton.jit
def w4a16_gemm_kernel(
    output_ptr, x_ptr, words_ptr, scale_ptr, zero_ptr, num_tokens, x_stride,
    N: tl.constexpr, K: tl.constexpr, WORDS: tl.constexpr, GROUPS: tl.constexpr,
    TOKEN_TILE: tl.constexpr, ROW_TILE: tl.constexpr, COLUMN_TILE: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64) * TOKEN_TILE + tl.arange(0, TOKEN_TILE)
    row = tl.program_id(1).to(tl.int64) * ROW_TILE + tl.arange(0, ROW_TILE)
    digit = tl.arange(0, 8)
    total = tl.zeros([TOKEN_TILE, ROW_TILE], tl.float32)
    for start in range(0, K, COLUMN_TILE):
        word = start // 8 + tl.arange(0, COLUMN_TILE // 8)
        mask = (row < N)[:, None] & (word < WORDS)[None, :]
        words = tl.load(words_ptr + row[:, None] * WORDS + word[None, :], mask, 0)
        numbers = (words[:, :, None] >> (digit * 4)[None, None, :]) & 0xF
        numbers = tl.reshape(numbers, (ROW_TILE, COLUMN_TILE))
        column = start + tl.arange(0, COLUMN_TILE)
        inside = (row < N)[:, None] & (column < K)[None, :]
        group = row[:, None] * GROUPS + (column // (K // GROUPS))[None, :]
        scale = tl.load(scale_ptr + group, inside, 0.0)
        zero = tl.load(zero_ptr + group, inside, 0).to(tl.int32)
        weight = (numbers - zero).to(tl.float32) * scale
        x_mask = (token < num_tokens)[:, None] & (column < K)[None, :]
        x = tl.load(x_ptr + token[:, None] * x_stride + column[None, :], x_mask, 0.0)
        weight = tl.where(inside, weight, 0.0).to(x.dtype)
        total = tl.dot(x, weight.T, total, input_precision="ieee")
    mask = (token < num_tokens)[:, None] & (row < N)[None, :]
    tl.store(output_ptr + token[:, None] * N + row[None, :], total, mask)


@triton.jit
def store_kv_int8_kernel(
    key_ptr, value_ptr, key_cache_ptr, value_cache_ptr, slot_mapping_ptr, key_stride, value_stride,
    HEAD_DIM: tl.constexpr, DIM_TILE: tl.constexpr, MIN_SCALE: tl.constexpr,
):  # fmt: skip
    token, head, heads = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    slot = tl.load(slot_mapping_ptr + token)
    if slot < 0:
        return
    which = tl.arange(0, 2)[:, None] == 0
    dim = tl.arange(0, DIM_TILE)[None, :]
    source = tl.where(which, key_ptr + token * key_stride, value_ptr + token * value_stride)
    x = tl.load(source + head * HEAD_DIM + dim, dim < HEAD_DIM, 0.0).to(tl.float32)
    x = tl.where(x == x, tl.clamp(x, -1e30, 1e30), 0.0)
    scale = tl.maximum(tl.abs(x).max(1) / 127.0, MIN_SCALE)[:, None]
    place = (slot * heads + head) * (HEAD_DIM + 4)
    target = tl.where(which, key_cache_ptr + place, value_cache_ptr + place)
    tl.store(target + dim, nearest(x / scale).to(tl.int8), dim < HEAD_DIM)
    byte = tl.arange(0, 4)[None, :]
    tail = scale.to(tl.int32, bitcast=True) >> (byte << 3)
    tl.store(target + HEAD_DIM + byte, (tail & 0xFF).to(tl.uint8).to(tl.int8, bitcast=True))


@triton.jit
def scales_of(cache_ptr, place, seen):
    """A float32 from four bytes, the highest first."""
    bits = tl.zeros_like(place).to(tl.int32)
    for byte in tl.static_range(3, -1, -1):
        part = tl.load(cache_ptr + place + byte, seen, 0).to(tl.uint8, bitcast=True)
        bits = (bits << 8) | part.to(tl.int32)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def paged_decode_int8_kernel(
    output_ptr, query_ptr, key_cache_ptr, value_cache_ptr, block_table_ptr, seq_lens_ptr,
    query_stride, table_stride, scale, window,
    BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    GROUP_TILE: tl.constexpr, DIM_TILE: tl.constexpr, KEY_TILE: tl.constexpr,
):  # fmt: skip
    request, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    kv_heads = tl.num_programs(1)
    member = tl.arange(0, GROUP_TILE)[None, :]
    dim = tl.arange(0, DIM_TILE)
    mine = (dim < HEAD_DIM)[:, None] & (member < GROUP)
    at = (kv_head * GROUP + member) * HEAD_DIM + dim[:, None]
    query = tl.load(query_ptr + request * query_stride + at, mine, 0.0).to(tl.float32) * scale
    length = tl.load(seq_lens_ptr + request)
    visible = min(length, window)
    top = tl.full([GROUP_TILE], float("-inf"), tl.float32)
    mass = tl.zeros([GROUP_TILE], tl.float32)
    acc = tl.zeros([DIM_TILE, GROUP_TILE], tl.float32)
    for tile in range(tl.cdiv(visible, KEY_TILE)):
        position = length - 1 - tile * KEY_TILE - tl.arange(0, KEY_TILE)
        seen = position >= length - visible
        entry = block_table_ptr + request * table_stride + position // BLOCK_SIZE
        slot = tl.load(entry, seen, 0).to(tl.int64) * BLOCK_SIZE + position % BLOCK_SIZE
        place = (slot * kv_heads + kv_head) * (HEAD_DIM + 4)
        inside = seen[:, None] & (dim < HEAD_DIM)[None, :]
        key = tl.load(key_cache_ptr + place[:, None] + dim[None, :], inside, 0).to(tl.float32)
        key *= scales_of(key_cache_ptr, place + HEAD_DIM, seen)[:, None]
        scores = tl.dot(key, query, input_precision="ieee")
        scores = tl.where(seen[:, None], scores, float("-inf"))
        new_top = tl.maximum(top, scores.max(0))
        weights = tl.exp(scores - new_top[None, :])
        fade = tl.exp(top - new_top)
        value = tl.load(value_cache_ptr + place[None, :] + dim[:, None], inside.T, 0)
        value = value.to(tl.float32) * scales_of(value_cache_ptr, place + HEAD_DIM, seen)[None, :]
        acc = tl.dot(value, weights, acc * fade[None, :], input_precision="ieee")
        mass = mass * fade + weights.sum(0)
        top = new_top
    row = (request * kv_heads * GROUP + kv_head * GROUP + member) * HEAD_DIM
    output = acc / tl.where(mass > 0.0, mass, 1.0)[None, :]
    tl.store(output_ptr + row + dim[:, None], output, mine)
