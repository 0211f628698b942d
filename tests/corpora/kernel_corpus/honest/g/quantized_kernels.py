"""The product turned round, rounding by hand, scales byte by byte; pages in a while loop."""

import triton
import triton.language as tl


@triton.jit
def half_even(x):
    down = tl.floor(x)
    rest = x - down
    even = tl.floor(down / 2) * 2 == down
    return tl.where(
        rest < 0.5, down, tl.where(rest > 0.5, down + 1.0, tl.where(even, down, down + 1.0))
    )


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
    t = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, SIZE_TILE)
    x = tl.load(x_ptr + t * x_stride + c, mask=c < SIZE, other=0.0).to(tl.float32)
    top = tl.maximum(tl.max(x, 0), -tl.min(x, 0))
    scale = tl.maximum(top / 127.0, MIN_SCALE)
    tl.store(output_ptr + t * SIZE + c, half_even(x / scale).to(tl.int8), mask=c < SIZE)
    tl.store(scale_ptr + t, scale)


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
    t = (tl.program_id(0) * TOKEN_TILE + tl.arange(0, TOKEN_TILE)).to(tl.int64)
    n = (tl.program_id(1) * ROW_TILE + tl.arange(0, ROW_TILE)).to(tl.int64)
    ot, on = t < num_tokens, n < N
    acc = tl.zeros((ROW_TILE, TOKEN_TILE), dtype=tl.int32)
    for k in range(0, tl.cdiv(K, COLUMN_TILE)):
        c = k * COLUMN_TILE + tl.arange(0, COLUMN_TILE)
        w = tl.load(weight_ptr + n[:, None] * K + c, mask=on[:, None] & (c < K), other=0)
        x = tl.load(
            x_ptr + t[None, :] * x_stride + c[:, None], mask=ot[None, :] & (c[:, None] < K), other=0
        )
        acc += tl.dot(w, x, out_dtype=tl.int32)
    ws = tl.load(weight_scale_ptr + n, mask=on, other=1.0)
    xs = tl.load(x_scale_ptr + t, mask=ot, other=1.0)
    y = acc.to(tl.float32) * (ws[:, None] * xs[None, :])
    tl.store(output_ptr + t[None, :] * N + n[:, None], y, mask=on[:, None] & ot[None, :])


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
    t = (tl.program_id(0) * TOKEN_TILE + tl.arange(0, TOKEN_TILE)).to(tl.int64)
    n = (tl.program_id(1) * ROW_TILE + tl.arange(0, ROW_TILE)).to(tl.int64)
    ot, on = t < num_tokens, n < N
    acc = tl.zeros((TOKEN_TILE, ROW_TILE), dtype=tl.float32)
    for k in range(0, K, COLUMN_TILE):
        # weights are made as [columns, rows]
        c = k + tl.arange(0, COLUMN_TILE)
        inside = (c < K)[:, None] & on[None, :]
        word = tl.load(words_ptr + n[None, :] * WORDS + (c >> 3)[:, None], mask=inside, other=0)
        nibble = (word >> ((c & 7) << 2)[:, None]) & 0xF
        at = n[None, :] * GROUPS + (c // (K // GROUPS))[:, None]
        s = tl.load(scale_ptr + at, mask=inside, other=0.0)
        z = tl.load(zero_ptr + at, mask=inside, other=0)
        w = ((nibble - z.to(tl.int32)) * s).to(x_ptr.dtype.element_ty)
        x = tl.load(
            x_ptr + t[:, None] * x_stride + c[None, :],
            mask=ot[:, None] & (c < K)[None, :],
            other=0.0,
        )
        acc += tl.dot(x, w, input_precision="ieee")
    tl.store(output_ptr + t[:, None] * N + n[None, :], acc, mask=ot[:, None] & on[None, :])


@triton.jit
def put(cache_ptr, x_ptr, place, c, HEAD_DIM: tl.constexpr, MIN_SCALE: tl.constexpr):
    x = tl.load(x_ptr + c, mask=c < HEAD_DIM, other=0.0).to(tl.float32)
    x = tl.where(x != x, 0.0, x)
    x = tl.clamp(x, -1e30, 1e30)
    scale = tl.maximum(tl.max(tl.abs(x), 0) / 127.0, MIN_SCALE)
    tl.store(cache_ptr + place + c, half_even(x / scale).to(tl.int8), mask=c < HEAD_DIM)
    bits = scale.to(tl.uint32, bitcast=True)
    for i in tl.static_range(4):
        tl.store(
            cache_ptr + place + HEAD_DIM + i,
            ((bits >> (8 * i)) & 0xFF).to(tl.uint8).to(tl.int8, bitcast=True),
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
    t = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1)
    slot = tl.load(slot_mapping_ptr + t)
    if slot == -1:
        return
    place = (slot * tl.num_programs(1) + h) * (HEAD_DIM + 4)
    c = tl.arange(0, DIM_TILE)
    put(value_cache_ptr, value_ptr + t * value_stride + h * HEAD_DIM, place, c, HEAD_DIM, MIN_SCALE)
    put(key_cache_ptr, key_ptr + t * key_stride + h * HEAD_DIM, place, c, HEAD_DIM, MIN_SCALE)


@triton.jit
def scales(ptr, at, mask):
    bits = tl.zeros(at.shape, tl.uint32)
    for i in tl.static_range(4):
        byte = tl.load(ptr + at + i, mask=mask, other=0).to(tl.uint8, bitcast=True)
        bits = bits | (byte.to(tl.uint32) << (8 * i))
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
    r = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1)
    H = tl.num_programs(1)
    g = tl.arange(0, GROUP_TILE)
    d = tl.arange(0, DIM_TILE)
    mask_q = (g < GROUP)[:, None] & (d < HEAD_DIM)[None, :]
    q = tl.load(
        query_ptr + r * query_stride + (h * GROUP + g)[:, None] * HEAD_DIM + d[None, :],
        mask=mask_q,
        other=0.0,
    )
    n = tl.load(seq_lens_ptr + r)
    lo = tl.maximum(n - window, 0)
    m = tl.full([GROUP_TILE], -3.0e38, tl.float32)
    mass = tl.zeros([GROUP_TILE], tl.float32)
    o = tl.zeros([GROUP_TILE, DIM_TILE], tl.float32)
    start = lo
    while start < n:
        pos = start + tl.arange(0, KEY_TILE)
        ok = pos < n
        block = tl.load(
            block_table_ptr + r * table_stride + pos // BLOCK_SIZE, mask=ok, other=0
        ).to(tl.int64)
        place = ((block * BLOCK_SIZE + pos % BLOCK_SIZE) * H + h) * (HEAD_DIM + 4)
        page = ok[:, None] & (d < HEAD_DIM)[None, :]
        k = tl.load(key_cache_ptr + place[:, None] + d[None, :], mask=page, other=0).to(q.dtype)
        x = (
            tl.dot(q, tl.trans(k), input_precision="ieee")
            * scales(key_cache_ptr, place + HEAD_DIM, ok)[None, :]
            * scale
        )
        m2 = tl.maximum(m, tl.max(tl.where(ok[None, :], x, -3.0e38), 1))
        p = tl.where(ok[None, :], tl.exp(x - m2[:, None]), 0.0)
        a = tl.exp(m - m2)
        mass = mass * a + tl.sum(p, 1)
        v = tl.load(value_cache_ptr + place[:, None] + d[None, :], mask=page, other=0).to(q.dtype)
        pv = (p * scales(value_cache_ptr, place + HEAD_DIM, ok)[None, :]).to(q.dtype)
        o = tl.dot(pv, v, acc=o * a[:, None], input_precision="ieee")
        m = m2
        start += KEY_TILE
    y = tl.where(mass[:, None] > 0.0, o / tl.where(mass > 0.0, mass, 1.0)[:, None], 0.0)
    row = (r * H + h) * GROUP + g
    tl.store(output_ptr + row[:, None] * HEAD_DIM + d[None, :], y, mask=mask_q)
