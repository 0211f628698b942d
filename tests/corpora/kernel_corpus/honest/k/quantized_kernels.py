"""Other right kernels: tiles in groups that share rows of the weight, products in half precision
that are exact, one group of a weight after the other, a scale as four divisions."""

import triton
import triton.language as tl


@triton.jit
def nearest_even(x):
    """Cut the fraction off, and step away from zero where it is more than a half."""
    whole = x.to(tl.int32)
    rest = tl.abs(x - whole)
    step = (rest > 0.5) | ((rest == 0.5) & (whole % 2 != 0))
    return tl.where(step, tl.where(x < 0, whole - 1, whole + 1), whole)


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
    """Two passes over pieces of the row: the largest of each lane first, then of all."""
    PIECE: tl.constexpr = SIZE_TILE if SIZE_TILE < 4096 else 4096
    token = tl.program_id(0).to(tl.int64)
    x_ptr += token * x_stride
    output_ptr += token * SIZE
    lane = tl.arange(0, PIECE)
    largest = tl.zeros([PIECE], tl.float32)
    kept = tl.load(x_ptr + lane, mask=lane < SIZE, other=0).to(tl.float32)
    if SIZE > PIECE:
        for begin in range(0, SIZE, PIECE):
            x = tl.load(x_ptr + begin + lane, mask=begin + lane < SIZE, other=0).to(tl.float32)
            largest = tl.maximum(largest, tl.abs(x))
        scale = tl.maximum(tl.max(largest) / 127, MIN_SCALE)
        for begin in range(0, SIZE, PIECE):
            x = tl.load(x_ptr + begin + lane, mask=begin + lane < SIZE, other=0).to(tl.float32)
            number = nearest_even(tl.div_rn(x, scale + tl.zeros_like(x)))
            tl.store(output_ptr + begin + lane, number.to(tl.int8), mask=begin + lane < SIZE)
    else:
        scale = tl.maximum(tl.max(tl.abs(kept)) / 127, MIN_SCALE)
        number = nearest_even(kept / scale)
        tl.store(output_ptr + lane, number.to(tl.int8), mask=lane < SIZE)
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
    """Tiles in groups of eight, as matrix products have them. Products of int8 and their sums over
    a tile are whole numbers below 2^24, so half precision with a sum in float32 loses nothing."""
    number = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    in_group = 8 * tl.num_programs(1)
    first = number // in_group * 8
    height = tl.minimum(tl.num_programs(0) - first, 8)
    token = (first + number % in_group % height) * TOKEN_TILE + tl.arange(0, TOKEN_TILE)
    row = number % in_group // height * ROW_TILE + tl.arange(0, ROW_TILE)
    total = tl.zeros([TOKEN_TILE, ROW_TILE], tl.int32)
    for start in range(0, K, COLUMN_TILE):
        column = start + tl.arange(0, COLUMN_TILE)
        x = tl.load(
            x_ptr + token[:, None] * x_stride + column[None, :],
            mask=(token < num_tokens)[:, None] & (column < K)[None, :],
            other=0,
        )
        weight = tl.load(
            weight_ptr + row[None, :] * K + column[:, None],
            mask=(row < N)[None, :] & (column < K)[:, None],
            other=0,
        )
        total += tl.dot(x.to(tl.float16), weight.to(tl.float16)).to(tl.int32)
    x_scale = tl.load(x_scale_ptr + token, mask=token < num_tokens, other=1.0)
    scale = x_scale[:, None] * tl.load(weight_scale_ptr + row, mask=row < N, other=1.0)[None, :]
    tl.store(
        output_ptr + token[:, None] * N + row[None, :],
        total * scale,
        mask=(token < num_tokens)[:, None] & (row < N)[None, :],
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
    """Group by group: tiles begin where a group does, and its scale is read once."""
    WIDTH: tl.constexpr = K // GROUPS
    token = tl.program_id(0).to(tl.int64) * TOKEN_TILE + tl.arange(0, TOKEN_TILE)
    row = tl.program_id(1).to(tl.int64) * ROW_TILE + tl.arange(0, ROW_TILE)
    total = tl.zeros([TOKEN_TILE, ROW_TILE], tl.float32)
    for group in range(GROUPS):
        scale = tl.load(scale_ptr + row * GROUPS + group, mask=row < N, other=0.0)
        zero = tl.load(zero_ptr + row * GROUPS + group, mask=row < N, other=0).to(tl.int32)
        for start in range(0, WIDTH, COLUMN_TILE):
            inside = start + tl.arange(0, COLUMN_TILE)
            column = group * WIDTH + inside
            x = tl.load(
                x_ptr + token[:, None] * x_stride + column[None, :],
                mask=(token < num_tokens)[:, None] & (inside < WIDTH)[None, :],
                other=0.0,
            )
            word = tl.load(
                words_ptr + row[None, :] * WORDS + (column >> 3)[:, None],
                mask=(row < N)[None, :] & (inside < WIDTH)[:, None],
                other=0,
            )
            digit = (word >> ((column & 7) << 2)[:, None]) & 0xF
            weight = (digit - zero[None, :]).to(tl.float32) * scale[None, :]
            total += tl.dot(x, weight.to(x.dtype), input_precision="ieee")
    tl.store(
        output_ptr + token[:, None] * N + row[None, :],
        total,
        mask=(token < num_tokens)[:, None] & (row < N)[None, :],
    )


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
    """Key and value as two rows of one tile, with one load and two stores for both."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    slot = tl.load(slot_mapping_ptr + token)
    if slot < 0:
        return
    which = tl.arange(0, 2)[:, None]
    dim = tl.arange(0, DIM_TILE)[None, :]
    head_at = head * HEAD_DIM
    from_ptr = tl.where(
        which == 0,
        key_ptr + token * key_stride + head_at,
        value_ptr + token * value_stride + head_at,
    )
    x = tl.load(from_ptr + dim, mask=dim < HEAD_DIM, other=0.0).to(tl.float32)
    x = tl.where(x != x, 0.0, tl.clamp(x, -1e30, 1e30))
    scale = tl.maximum(tl.max(tl.abs(x), axis=1, keep_dims=True) / 127.0, MIN_SCALE)
    place = (slot * tl.num_programs(1) + head) * (HEAD_DIM + 4)
    to_ptr = tl.where(which == 0, key_cache_ptr + place, value_cache_ptr + place)
    tl.store(to_ptr + dim, nearest_even(x / scale).to(tl.int8), mask=dim < HEAD_DIM)
    byte = tl.arange(0, 4)[None, :]
    bits = scale.to(tl.uint32, bitcast=True)
    tl.store(to_ptr + HEAD_DIM + byte, (bits >> (byte * 8)).to(tl.uint8).to(tl.int8, bitcast=True))


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
    """The first of the visible keys begins the softmax, so that no maximum is ever infinite; bytes
    of scales are read by name."""
    request = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    heads_here = tl.num_programs(1)
    g = tl.arange(0, GROUP_TILE)
    d = tl.arange(0, DIM_TILE)
    rows = request * heads_here * GROUP + kv_head * GROUP + g
    mine = (g < GROUP)[:, None] & (d < HEAD_DIM)[None, :]
    to = output_ptr + rows[:, None] * HEAD_DIM + d[None, :]
    end = tl.load(seq_lens_ptr + request)
    if end == 0:
        tl.store(to, tl.zeros([GROUP_TILE, DIM_TILE], tl.float32), mask=mine)
        return
    q_at = query_ptr + request * query_stride + (kv_head * GROUP + g)[:, None] * HEAD_DIM
    query = tl.load(q_at + d[None, :], mask=mine, other=0.0)
    table = block_table_ptr + request * table_stride
    largest = tl.full([GROUP_TILE], -3.0e38, tl.float32)
    mass = tl.zeros([GROUP_TILE], tl.float32)
    acc = tl.zeros([GROUP_TILE, DIM_TILE], tl.float32)
    start = tl.maximum(end - window, 0)
    while start < end:
        at = start + tl.arange(0, KEY_TILE)
        seen = at < end
        block = tl.load(table + at // BLOCK_SIZE, mask=seen, other=0).to(tl.int64)
        head_at = ((block * BLOCK_SIZE + at % BLOCK_SIZE) * heads_here + kv_head) * (HEAD_DIM + 4)
        inside = seen[:, None] & (d < HEAD_DIM)[None, :]
        key = tl.load(key_cache_ptr + head_at[:, None] + d[None, :], mask=inside, other=0)
        key_bits = tl.zeros([KEY_TILE], tl.int32)
        value_bits = tl.zeros([KEY_TILE], tl.int32)
        for byte in tl.static_range(4):
            place = head_at + HEAD_DIM + byte
            one = tl.load(key_cache_ptr + place, mask=seen, other=0).to(tl.uint8, bitcast=True)
            key_bits = key_bits | (one.to(tl.int32) << (8 * byte))
            one = tl.load(value_cache_ptr + place, mask=seen, other=0).to(tl.uint8, bitcast=True)
            value_bits = value_bits | (one.to(tl.int32) << (8 * byte))
        scores = tl.dot(query, key.to(query.dtype).T, input_precision="ieee")
        scores *= key_bits.to(tl.float32, bitcast=True)[None, :]
        scores = tl.where(seen[None, :], scores * scale, -3.0e38)
        top = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.where(seen[None, :], tl.exp(scores - top[:, None]), 0.0)
        shrink = tl.exp(largest - top)
        mass = mass * shrink + tl.sum(weights, 1)
        value = tl.load(value_cache_ptr + head_at[:, None] + d[None, :], mask=inside, other=0)
        weights *= value_bits.to(tl.float32, bitcast=True)[None, :]
        acc *= shrink[:, None]
        acc += tl.dot(weights.to(query.dtype), value.to(query.dtype), input_precision="ieee")
        largest = top
        start += KEY_TILE
    tl.store(to, acc / mass[:, None], mask=mine)
