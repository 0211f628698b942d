"""Other right kernels: products the other way round; a word is read once for all it holds. In an
order of requests the last head of each comes first."""

import triton
import triton.language as tl

MAGIC = tl.constexpr(12582912.0)


@triton.jit
def per_token_quant_int8_kernel(
    output_ptr, scale_ptr, x_ptr, x_stride,
    SIZE: tl.constexpr, SIZE_TILE: tl.constexpr, MIN_SCALE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, SIZE_TILE)
    x = tl.load(x_ptr + row * x_stride + at, mask=at < SIZE, other=0.0).to(tl.float32)
    step = tl.maximum(tl.maximum(tl.max(x, axis=0), -tl.min(x, axis=0)) / 127.0, MIN_SCALE)
    shifted = x / step + MAGIC
    tl.store(scale_ptr + row, step)
    tl.store(output_ptr + row * SIZE + at, (shifted - MAGIC).to(tl.int8), mask=at < SIZE)


@triton.jit
def w8a8_gemm_kernel(
    output_ptr, x_ptr, weight_ptr, x_scale_ptr, weight_scale_ptr, num_tokens, x_stride,
    N: tl.constexpr, K: tl.constexpr, TOKEN_TILE: tl.constexpr, ROW_TILE: tl.constexpr,
    COLUMN_TILE: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64) * TOKEN_TILE + tl.arange(0, TOKEN_TILE)[None, :]
    row = tl.program_id(1).to(tl.int64) * ROW_TILE + tl.arange(0, ROW_TILE)[:, None]
    total = tl.zeros([ROW_TILE, TOKEN_TILE], tl.int32)
    for start in range(0, K, COLUMN_TILE):
        column = start + tl.arange(0, COLUMN_TILE)
        w = tl.load(
            weight_ptr + row * K + column[None, :], mask=(row < N) & (column < K)[None, :], other=0
        )
        x = tl.load(
            x_ptr + token * x_stride + column[:, None],
            mask=(token < num_tokens) & (column < K)[:, None], other=0,
        )  # fmt: skip
        total = tl.dot(w, x, acc=total, out_dtype=tl.int32)
    y = total.to(tl.float32) * tl.load(weight_scale_ptr + row, mask=row < N, other=0.0)
    y = y * tl.load(x_scale_ptr + token, mask=token < num_tokens, other=0.0)
    tl.store(output_ptr + token * N + row, y, mask=(token < num_tokens) & (row < N))


@triton.jit
def w4a16_gemm_kernel(
    output_ptr, x_ptr, words_ptr, scale_ptr, zero_ptr, num_tokens, x_stride,
    N: tl.constexpr, K: tl.constexpr, WORDS: tl.constexpr, GROUPS: tl.constexpr,
    TOKEN_TILE: tl.constexpr, ROW_TILE: tl.constexpr, COLUMN_TILE: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64) * TOKEN_TILE + tl.arange(0, TOKEN_TILE)
    row = tl.program_id(1).to(tl.int64) * ROW_TILE + tl.arange(0, ROW_TILE)
    total = tl.zeros([ROW_TILE, TOKEN_TILE], tl.float32)
    for start in range(0, WORDS * 8, COLUMN_TILE):
        word = start // 8 + tl.arange(0, COLUMN_TILE // 8)
        mask = (row < N)[:, None] & (word < WORDS)[None, :]
        words = tl.load(words_ptr + row[:, None] * WORDS + word[None, :], mask=mask, other=0)
        number = (words[:, :, None] >> (tl.arange(0, 8) * 4)[None, None, :]) & 15
        number = tl.reshape(number, [ROW_TILE, COLUMN_TILE])
        column = start + tl.arange(0, COLUMN_TILE)
        group = row[:, None] * GROUPS + (column // (K // GROUPS))[None, :]
        inside = (row < N)[:, None] & (column < K)[None, :]
        step = tl.load(scale_ptr + group, mask=inside, other=0.0)
        zero = tl.load(zero_ptr + group, mask=inside, other=0).to(tl.int32)
        x = tl.load(
            x_ptr + token[None, :] * x_stride + column[:, None],
            mask=(token < num_tokens)[None, :] & (column < K)[:, None], other=0.0,
        )  # fmt: skip
        w = ((number - zero).to(tl.float32) * step).to(x.dtype)
        total = tl.dot(w, x, total, input_precision="ieee")
    mask = (row < N)[:, None] & (token < num_tokens)[None, :]
    tl.store(output_ptr + token[None, :] * N + row[:, None], total, mask=mask)


@triton.jit
def store_kv_int8_kernel(
    key_ptr, value_ptr, key_cache_ptr, value_cache_ptr, slot_mapping_ptr, key_stride, value_stride,
    HEAD_DIM: tl.constexpr, DIM_TILE: tl.constexpr, MIN_SCALE: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping_ptr + token)
    at = tl.arange(0, DIM_TILE)
    byte = tl.arange(0, 4)
    stored = slot >= 0
    inside = (at < HEAD_DIM) & stored
    place = (slot * tl.num_programs(1) + tl.program_id(1)) * (HEAD_DIM + 4)
    row = tl.program_id(1) * HEAD_DIM + at

    x = tl.load(value_ptr + token * value_stride + row, mask=inside, other=0.0).to(tl.float32)
    x = tl.minimum(tl.maximum(tl.where(x == x, x, 0.0), -1e30), 1e30)
    step = tl.maximum(tl.maximum(tl.max(x, axis=0), -tl.min(x, axis=0)) / 127.0, MIN_SCALE)
    tl.store(value_cache_ptr + place + at, ((x / step + MAGIC) - MAGIC).to(tl.int8), mask=inside)
    bits = (step.to(tl.int32, bitcast=True) >> (byte * 8)).to(tl.int8)
    tl.store(value_cache_ptr + place + HEAD_DIM + byte, bits, mask=(byte < 4) & stored)

    x = tl.load(key_ptr + token * key_stride + row, mask=inside, other=0.0).to(tl.float32)
    x = tl.minimum(tl.maximum(tl.where(x == x, x, 0.0), -1e30), 1e30)
    step = tl.maximum(tl.maximum(tl.max(x, axis=0), -tl.min(x, axis=0)) / 127.0, MIN_SCALE)
    tl.store(key_cache_ptr + place + at, ((x / step + MAGIC) - MAGIC).to(tl.int8), mask=inside)
    bits = (step.to(tl.int32, bitcast=True) >> (byte * 8)).to(tl.int8)
    tl.store(key_cache_ptr + place + HEAD_DIM + byte, bits, mask=(byte < 4) & stored)


@triton.jit
def scales(cache_ptr, place, mask):
    byte = tl.arange(0, 4)
    parts = tl.load(cache_ptr + place[None, :] + byte[:, None], mask=mask[None, :], other=0)
    bits = tl.sum((parts.to(tl.int32) & 255) << (8 * byte)[:, None], axis=0)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def paged_decode_int8_kernel(
    output_ptr, query_ptr, key_cache_ptr, value_cache_ptr, block_table_ptr, seq_lens_ptr,
    query_stride, table_stride, scale, window,
    BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    GROUP_TILE: tl.constexpr, DIM_TILE: tl.constexpr, KEY_TILE: tl.constexpr, order_ptr=None,
):  # fmt: skip
    request = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    if order_ptr is not None:
        begun = kv_head * tl.num_programs(0) + tl.program_id(0)
        request = tl.load(order_ptr + begun // tl.num_programs(1))
        kv_head = tl.num_programs(1) - 1 - begun % tl.num_programs(1)
    heads = kv_head * GROUP + tl.arange(0, GROUP_TILE)
    dim = tl.arange(0, DIM_TILE)
    mine = (tl.arange(0, GROUP_TILE) < GROUP)[None, :] & (dim < HEAD_DIM)[:, None]
    at = request * query_stride + heads[None, :] * HEAD_DIM + dim[:, None]
    query = tl.load(query_ptr + at, mask=mine, other=0.0)
    length = tl.load(seq_lens_ptr + request)
    top = tl.full([GROUP_TILE], float("-inf"), tl.float32)
    mass = tl.zeros([GROUP_TILE], tl.float32)
    acc = tl.zeros([DIM_TILE, GROUP_TILE], tl.float32)
    for start in range(tl.maximum(length - window, 0), length, KEY_TILE):
        position = start + tl.arange(0, KEY_TILE)
        seen = position < length
        entry = request * table_stride + position // BLOCK_SIZE
        block = tl.load(block_table_ptr + entry, mask=seen, other=0).to(tl.int64)
        slot = block * BLOCK_SIZE + position % BLOCK_SIZE
        place = (slot * tl.num_programs(1) + kv_head) * (HEAD_DIM + 4)
        there = seen[:, None] & (dim < HEAD_DIM)[None, :]
        key = tl.load(key_cache_ptr + place[:, None] + dim[None, :], mask=there, other=0)
        scores = tl.dot(key.to(query.dtype), query, input_precision="ieee")  # [KEY_TILE, GROUP]
        scores = scores * (scales(key_cache_ptr, place + HEAD_DIM, seen) * scale)[:, None]
        scores = tl.where(seen[:, None], scores, float("-inf"))
        highest = tl.maximum(top, tl.max(scores, axis=0))
        weight = tl.exp(scores - highest[None, :])
        fade = tl.exp(top - highest)
        mass = mass * fade + tl.sum(weight, axis=0)
        weight = weight * scales(value_cache_ptr, place + HEAD_DIM, seen)[:, None]
        value = tl.load(value_cache_ptr + place[:, None] + dim[None, :], mask=there, other=0)
        part = tl.dot(tl.trans(value.to(query.dtype)), weight.to(query.dtype),
                      input_precision="ieee")  # fmt: skip
        acc = acc * fade[None, :] + part
        top = highest
    rows = request * tl.num_programs(1) * GROUP + heads
    result = acc / tl.where(mass == 0.0, 1.0, mass)[None, :]
    tl.store(output_ptr + rows[None, :] * HEAD_DIM + dim[:, None], result, mask=mine)
