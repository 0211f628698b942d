"""Other right kernels: values are widened before their product, and sums run in other tiles."""

import triton
import triton.language as tl

ROUND = tl.constexpr(12582912.0)


@triton.jit
def per_token_quant_int8_kernel(
    output_ptr, scale_ptr, x_ptr, x_stride,
    SIZE: tl.constexpr, SIZE_TILE: tl.constexpr, MIN_SCALE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, SIZE_TILE)
    x = tl.load(x_ptr + row * x_stride + at, mask=at < SIZE, other=0.0).to(tl.float32)
    largest = tl.max(tl.where(at < SIZE, tl.abs(x), 0.0), axis=0)
    step = largest / 127.0
    step = tl.where(step > MIN_SCALE, step, MIN_SCALE)
    steps = ((x / step + ROUND) - ROUND).to(tl.int32)
    tl.store(output_ptr + row * SIZE + at, steps.to(tl.int8), mask=at < SIZE)
    tl.store(scale_ptr + row, step)


@triton.jit
def w8a8_gemm_kernel(
    output_ptr, x_ptr, weight_ptr, x_scale_ptr, weight_scale_ptr, num_tokens, x_stride,
    N: tl.constexpr, K: tl.constexpr, TOKEN_TILE: tl.constexpr, ROW_TILE: tl.constexpr,
    COLUMN_TILE: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0) * TOKEN_TILE + tl.arange(0, TOKEN_TILE)
    row = tl.program_id(1) * ROW_TILE + tl.arange(0, ROW_TILE)
    x_at = x_ptr + token.to(tl.int64)[:, None] * x_stride
    w_at = weight_ptr + row.to(tl.int64)[:, None] * K
    total = tl.zeros([TOKEN_TILE, ROW_TILE], tl.int32)
    start = 0
    while start < K:
        column = start + tl.arange(0, COLUMN_TILE)[None, :]
        x = tl.load(x_at + column, mask=(token < num_tokens)[:, None] & (column < K), other=0)
        w = tl.load(w_at + column, mask=(row < N)[:, None] & (column < K), other=0)
        total += tl.dot(x, tl.trans(w), out_dtype=tl.int32)
        start += COLUMN_TILE
    left = tl.load(x_scale_ptr + token, mask=token < num_tokens, other=0.0)
    right = tl.load(weight_scale_ptr + row, mask=row < N, other=0.0)
    y = (total.to(tl.float32) * right[None, :]) * left[:, None]
    mask = (token < num_tokens)[:, None] & (row < N)[None, :]
    tl.store(output_ptr + token.to(tl.int64)[:, None] * N + row[None, :], y, mask=mask)


@triton.jit
def w4a16_gemm_kernel(
    output_ptr, x_ptr, words_ptr, scale_ptr, zero_ptr, num_tokens, x_stride,
    N: tl.constexpr, K: tl.constexpr, WORDS: tl.constexpr, GROUPS: tl.constexpr,
    TOKEN_TILE: tl.constexpr, ROW_TILE: tl.constexpr, COLUMN_TILE: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0) * TOKEN_TILE + tl.arange(0, TOKEN_TILE)
    row = (tl.program_id(1) * ROW_TILE + tl.arange(0, ROW_TILE)).to(tl.int64)
    x_at = x_ptr + token.to(tl.int64)[:, None] * x_stride
    total = tl.zeros([TOKEN_TILE, ROW_TILE], tl.float32)
    size = K // GROUPS
    start = 0
    while start < K:
        column = start + tl.arange(0, COLUMN_TILE)[None, :]
        mask = (row < N)[:, None] & (column < K)
        x = tl.load(x_at + column, mask=(token < num_tokens)[:, None] & (column < K), other=0.0)
        word = tl.load(words_ptr + row[:, None] * WORDS + (column >> 3), mask=mask, other=0)
        number = ((word >> ((column & 7) << 2)) & 15).to(tl.float32)
        step = tl.load(scale_ptr + row[:, None] * GROUPS + column // size, mask=mask, other=0.0)
        zero = tl.load(zero_ptr + row[:, None] * GROUPS + column // size, mask=mask, other=0)
        weight = (number - zero.to(tl.float32)) * step
        total += tl.dot(x, tl.trans(weight.to(x.dtype)), input_precision="ieee")
        start += COLUMN_TILE
    mask = (token < num_tokens)[:, None] & (row < N)[None, :]
    tl.store(output_ptr + token.to(tl.int64)[:, None] * N + row[None, :], total, mask=mask)


@triton.jit
def one_head(from_ptr, to_ptr, HEAD_DIM: tl.constexpr, DIM_TILE: tl.constexpr, MIN_SCALE):
    at = tl.arange(0, DIM_TILE)
    x = tl.load(from_ptr + at, mask=at < HEAD_DIM, other=0.0).to(tl.float32)
    x = tl.where(x != x, 0.0, x)
    x = tl.maximum(tl.minimum(x, 1e30), -1e30)
    largest = tl.max(tl.abs(x), axis=0)
    step = tl.maximum(largest / 127.0, MIN_SCALE)
    tl.store(to_ptr + at, ((x / step + ROUND) - ROUND).to(tl.int8), mask=at < HEAD_DIM)
    bits = step.to(tl.uint32, bitcast=True)
    byte = tl.arange(0, 4)
    tl.store(to_ptr + HEAD_DIM + byte, ((bits >> (8 * byte).to(tl.uint32)) & 255).to(tl.int8))


@triton.jit
def store_kv_int8_kernel(
    key_ptr, value_ptr, key_cache_ptr, value_cache_ptr, slot_mapping_ptr, key_stride, value_stride,
    HEAD_DIM: tl.constexpr, DIM_TILE: tl.constexpr, MIN_SCALE: tl.constexpr,
):  # fmt: skip
    slot = tl.load(slot_mapping_ptr + tl.program_id(0))
    if slot > -1:
        token = tl.program_id(0).to(tl.int64)
        head = tl.program_id(1)
        place = (slot * tl.num_programs(1) + head) * (HEAD_DIM + 4)
        from_key = key_ptr + token * key_stride + head * HEAD_DIM
        from_value = value_ptr + token * value_stride + head * HEAD_DIM
        one_head(from_value, value_cache_ptr + place, HEAD_DIM, DIM_TILE, MIN_SCALE)
        one_head(from_key, key_cache_ptr + place, HEAD_DIM, DIM_TILE, MIN_SCALE)


@triton.jit
def widened(cache_ptr, place, seen, HEAD_DIM: tl.constexpr, DIM_TILE: tl.constexpr):
    dim = tl.arange(0, DIM_TILE)
    mask = seen[:, None] & (dim < HEAD_DIM)[None, :]
    numbers = tl.load(cache_ptr + place[:, None] + dim[None, :], mask=mask, other=0)
    byte = tl.arange(0, 4)
    tail = cache_ptr + place[:, None] + HEAD_DIM + byte[None, :]
    parts = tl.load(tail, mask=seen[:, None], other=0).to(tl.int32) & 255
    bits = tl.sum(parts << (8 * byte)[None, :], axis=1)
    return numbers.to(tl.float32) * bits.to(tl.float32, bitcast=True)[:, None]


@triton.jit
def paged_decode_int8_kernel(
    output_ptr, query_ptr, key_cache_ptr, value_cache_ptr, block_table_ptr, seq_lens_ptr,
    query_stride, table_stride, scale, window,
    BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    GROUP_TILE: tl.constexpr, DIM_TILE: tl.constexpr, KEY_TILE: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    member = tl.arange(0, GROUP_TILE)
    dim = tl.arange(0, DIM_TILE)
    mine = (member < GROUP)[:, None] & (dim < HEAD_DIM)[None, :]
    inner = (kv_head * GROUP + member)[:, None] * HEAD_DIM + dim[None, :]
    query = tl.load(query_ptr + request * query_stride + inner, mask=mine, other=0.0)
    query = query.to(tl.float32)
    length = tl.load(seq_lens_ptr + request)
    top = tl.full([GROUP_TILE], -1e37, tl.float32)
    mass = tl.zeros([GROUP_TILE], tl.float32)
    acc = tl.zeros([GROUP_TILE, DIM_TILE], tl.float32)
    for start in range(tl.maximum(length - window, 0), length, KEY_TILE):
        position = start + tl.arange(0, KEY_TILE)
        seen = position < length
        row = block_table_ptr + request * table_stride
        block = tl.load(row + position // BLOCK_SIZE, mask=seen, other=0).to(tl.int64)
        slot = block * BLOCK_SIZE + position % BLOCK_SIZE
        place = (slot * tl.num_programs(1) + kv_head) * (HEAD_DIM + 4)
        key = widened(key_cache_ptr, place, seen, HEAD_DIM, DIM_TILE)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        scores = tl.where(seen[None, :], scores, float("-inf"))
        highest = tl.maximum(top, tl.max(scores, axis=1))
        weight = tl.exp(scores - highest[:, None])
        fade = tl.exp(top - highest)
        value = widened(value_cache_ptr, place, seen, HEAD_DIM, DIM_TILE)
        acc = tl.dot(weight, value, acc * fade[:, None], input_precision="ieee")
        mass = mass * fade + tl.sum(weight, axis=1)
        top = highest
    if length == 0:
        mass = mass + 1.0
    first = request * tl.num_programs(1) * GROUP * HEAD_DIM
    tl.store(output_ptr + first + inner, acc / tl.where(mass > 0.0, mass, 1.0)[:, None], mask=mine)
