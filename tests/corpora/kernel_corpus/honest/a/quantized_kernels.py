"""Other right kernels: rows of zeros are asked for, scales are multiplied into tiles."""

import triton
import triton.language as tl


@triton.jit
def half_to_even(x):
    below = tl.floor(x)
    rest = x - below
    odd = (below.to(tl.int32) & 1) == 1
    return below + tl.where((rest > 0.5) | ((rest == 0.5) & odd), 1.0, 0.0)


@triton.jit
def per_token_quant_int8_kernel(
    output_ptr, scale_ptr, x_ptr, x_stride,
    SIZE: tl.constexpr, SIZE_TILE: tl.constexpr, MIN_SCALE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, SIZE_TILE)
    x = tl.load(x_ptr + row * x_stride + at, mask=at < SIZE, other=0).to(tl.float32)
    largest = tl.max(tl.where(x < 0, -x, x), axis=0)
    step = tl.where(largest / 127.0 < MIN_SCALE, MIN_SCALE, largest / 127.0)
    tl.store(output_ptr + row * SIZE + at, half_to_even(x / step).to(tl.int8), mask=at < SIZE)
    tl.store(scale_ptr + row, step)


@triton.jit
def w8a8_gemm_kernel(
    output_ptr, x_ptr, weight_ptr, x_scale_ptr, weight_scale_ptr, num_tokens, x_stride,
    N: tl.constexpr, K: tl.constexpr, TOKEN_TILE: tl.constexpr, ROW_TILE: tl.constexpr,
    COLUMN_TILE: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64) * TOKEN_TILE + tl.arange(0, TOKEN_TILE)[:, None]
    row = tl.program_id(1).to(tl.int64) * ROW_TILE + tl.arange(0, ROW_TILE)[None, :]
    acc = tl.zeros([TOKEN_TILE, ROW_TILE], tl.int32)
    for block in range(0, tl.cdiv(K, COLUMN_TILE)):
        column = block * COLUMN_TILE + tl.arange(0, COLUMN_TILE)
        x = tl.load(
            x_ptr + token * x_stride + column[None, :],
            mask=(token < num_tokens) & (column < K)[None, :], other=0,
        )  # fmt: skip
        w = tl.load(
            weight_ptr + row * K + column[:, None], mask=(row < N) & (column < K)[:, None], other=0
        )
        acc += tl.dot(x, w, out_dtype=tl.int32)
    x_scale = tl.load(x_scale_ptr + token, mask=token < num_tokens, other=0.0)
    scale = x_scale * tl.load(weight_scale_ptr + row, mask=row < N, other=0.0)
    mask = (token < num_tokens) & (row < N)
    tl.store(output_ptr + token * N + row, acc.to(tl.float32) * scale, mask=mask)


@triton.jit
def w4a16_gemm_kernel(
    output_ptr, x_ptr, words_ptr, scale_ptr, zero_ptr, num_tokens, x_stride,
    N: tl.constexpr, K: tl.constexpr, WORDS: tl.constexpr, GROUPS: tl.constexpr,
    TOKEN_TILE: tl.constexpr, ROW_TILE: tl.constexpr, COLUMN_TILE: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64) * TOKEN_TILE + tl.arange(0, TOKEN_TILE)[:, None]
    row = tl.program_id(1).to(tl.int64) * ROW_TILE + tl.arange(0, ROW_TILE)[None, :]
    acc = tl.zeros([TOKEN_TILE, ROW_TILE], tl.float32)
    for block in range(0, tl.cdiv(K, COLUMN_TILE)):
        column = block * COLUMN_TILE + tl.arange(0, COLUMN_TILE)
        x = tl.load(
            x_ptr + token * x_stride + column[None, :],
            mask=(token < num_tokens) & (column < K)[None, :], other=0.0,
        )  # fmt: skip
        mask = (row < N) & (column < K)[:, None]
        word = tl.load(words_ptr + row * WORDS + column[:, None] // 8, mask=mask, other=0)
        number = (word >> ((column & 7) * 4)[:, None]) & 0xF
        group = row * GROUPS + (column * GROUPS // K)[:, None]
        step = tl.load(scale_ptr + group, mask=mask, other=0.0)
        zero = tl.load(zero_ptr + group, mask=mask, other=0)
        w = (number.to(tl.float32) - zero.to(tl.float32)) * step
        acc = tl.dot(x, w.to(x.dtype), acc, input_precision="ieee")
    mask = (token < num_tokens) & (row < N)
    tl.store(output_ptr + token * N + row, acc.to(x_ptr.dtype.element_ty), mask=mask)


@triton.jit
def put(x, cache_ptr, place, HEAD_DIM: tl.constexpr, DIM_TILE: tl.constexpr, MIN_SCALE):
    at = tl.arange(0, DIM_TILE)
    x = tl.where(x == x, x, 0.0)
    x = tl.where(x > 1e30, 1e30, tl.where(x < -1e30, -1e30, x))
    step = tl.maximum(tl.max(tl.abs(x), axis=0) / 127.0, MIN_SCALE)
    tl.store(cache_ptr + place + at, half_to_even(x / step).to(tl.int8), mask=at < HEAD_DIM)
    bits = step.to(tl.int32, bitcast=True)
    for byte in tl.static_range(4):
        tl.store(cache_ptr + place + HEAD_DIM + byte, (bits >> (8 * byte)).to(tl.int8))


@triton.jit
def store_kv_int8_kernel(
    key_ptr, value_ptr, key_cache_ptr, value_cache_ptr, slot_mapping_ptr, key_stride, value_stride,
    HEAD_DIM: tl.constexpr, DIM_TILE: tl.constexpr, MIN_SCALE: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping_ptr + token)
    if slot == -1:
        return
    at = tl.arange(0, DIM_TILE)
    place = (slot * tl.num_programs(1) + tl.program_id(1)) * (HEAD_DIM + 4)
    row = tl.program_id(1) * HEAD_DIM + at
    key = tl.load(key_ptr + token * key_stride + row, mask=at < HEAD_DIM, other=0.0)
    value = tl.load(value_ptr + token * value_stride + row, mask=at < HEAD_DIM, other=0.0)
    put(key.to(tl.float32), key_cache_ptr, place, HEAD_DIM, DIM_TILE, MIN_SCALE)
    put(value.to(tl.float32), value_cache_ptr, place, HEAD_DIM, DIM_TILE, MIN_SCALE)


@triton.jit
def step_at(cache_ptr, place, mask):
    bits = tl.zeros_like(place).to(tl.int32)
    for byte in tl.static_range(4):
        part = tl.load(cache_ptr + place + byte, mask=mask, other=0).to(tl.int32) & 255
        bits = bits | (part << (8 * byte))
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def paged_decode_int8_kernel(
    output_ptr, query_ptr, key_cache_ptr, value_cache_ptr, block_table_ptr, seq_lens_ptr,
    query_stride, table_stride, scale, window,
    BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    GROUP_TILE: tl.constexpr, DIM_TILE: tl.constexpr, KEY_TILE: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * GROUP + tl.arange(0, GROUP_TILE)
    dim = tl.arange(0, DIM_TILE)
    mine = (tl.arange(0, GROUP_TILE) < GROUP)[:, None] & (dim < HEAD_DIM)[None, :]
    at = request * query_stride + heads[:, None] * HEAD_DIM + dim[None, :]
    query = tl.load(query_ptr + at, mask=mine, other=0.0)
    length = tl.load(seq_lens_ptr + request)
    top = tl.full([GROUP_TILE], -1e38, tl.float32)
    mass = tl.zeros([GROUP_TILE], tl.float32)
    acc = tl.zeros([GROUP_TILE, DIM_TILE], tl.float32)
    first = tl.maximum(length - window, 0)
    for tile in range(0, tl.cdiv(length - first, KEY_TILE)):
        position = first + tile * KEY_TILE + tl.arange(0, KEY_TILE)
        seen = position < length
        entry = request * table_stride + position // BLOCK_SIZE
        block = tl.load(block_table_ptr + entry, mask=seen, other=0).to(tl.int64)
        place = (block * BLOCK_SIZE + position % BLOCK_SIZE) * tl.num_programs(1) + tl.program_id(1)
        place = place * (HEAD_DIM + 4)
        there = seen[:, None] & (dim < HEAD_DIM)[None, :]
        key = tl.load(key_cache_ptr + place[:, None] + dim[None, :], mask=there, other=0)
        step = step_at(key_cache_ptr, place + HEAD_DIM, seen)
        scores = tl.dot(query, tl.trans(key.to(query.dtype)), input_precision="ieee")
        scores = tl.where(seen[None, :], scores * (step * scale)[None, :], float("-inf"))
        highest = tl.maximum(top, tl.max(scores, axis=1))
        weight = tl.exp(scores - highest[:, None])
        fade = tl.exp(top - highest)
        mass = mass * fade + tl.sum(weight, axis=1)
        value = tl.load(value_cache_ptr + place[:, None] + dim[None, :], mask=there, other=0)
        weight = weight * step_at(value_cache_ptr, place + HEAD_DIM, seen)[None, :]
        part = tl.dot(weight.to(query.dtype), value.to(query.dtype), input_precision="ieee")
        acc = acc * fade[:, None] + part
        top = highest
    rows = request * tl.num_programs(1) * GROUP + heads
    result = tl.where(length > 0, acc / tl.where(mass > 0.0, mass, 1.0)[:, None], 0.0)
    tl.store(output_ptr + rows[:, None] * HEAD_DIM + dim[None, :], result, mask=mine)
