"""Exp2 with log2(e), one block an iteration with a tile of the block's own size, -1e30 for -inf."""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def store_kv_kernel(
    key_ptr,
    value_ptr,
    key_cache_ptr,
    value_cache_ptr,
    slot_mapping_ptr,
    key_stride,
    value_stride,
    ROW: tl.constexpr,
    ROW_TILE: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping_ptr + token)
    if slot < 0:
        return
    CHUNK: tl.constexpr = 32 if ROW_TILE > 32 else ROW_TILE
    for start in tl.static_range(0, ROW_TILE, CHUNK):
        lane = start + tl.arange(0, CHUNK)
        mask = lane < ROW
        k = tl.load(key_ptr + token * key_stride + lane, mask)
        tl.store(key_cache_ptr + slot * ROW + lane, k, mask)
        v = tl.load(value_ptr + token * value_stride + lane, mask)
        tl.store(value_cache_ptr + slot * ROW + lane, v, mask)


@triton.jit
def paged_decode_kernel(
    output_ptr,
    lse_ptr,
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
    NUM_SPLITS: tl.constexpr,
    GROUP_TILE: tl.constexpr,
    DIM_TILE: tl.constexpr,
    KEY_TILE: tl.constexpr,
):
    r = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1)
    s = tl.program_id(2)
    H = tl.num_programs(1)
    TILE: tl.constexpr = 16 if BLOCK_SIZE <= 16 else triton.next_power_of_2(BLOCK_SIZE)
    g = tl.arange(0, GROUP_TILE)[:, None]
    d = tl.arange(0, DIM_TILE)[None, :]
    in_tile = (g < GROUP) & (d < HEAD_DIM)
    q = tl.load(
        query_ptr + r * query_stride + (h * GROUP + g) * HEAD_DIM + d, mask=in_tile, other=0.0
    )
    n = tl.load(seq_lens_ptr + r)
    lo = tl.maximum(n - window, 0)
    first_block = lo // BLOCK_SIZE
    blocks = tl.cdiv(n, BLOCK_SIZE) - first_block
    each = tl.cdiv(blocks, NUM_SPLITS)
    b0 = first_block + s * each
    b1 = tl.minimum(b0 + each, first_block + blocks)
    m = tl.full([GROUP_TILE, 1], -1e30, tl.float32)
    mass = tl.zeros([GROUP_TILE, 1], tl.float32)
    o = tl.zeros([GROUP_TILE, DIM_TILE], tl.float32)
    for b in range(b0, b1):
        lane = tl.arange(0, TILE)
        pos = b * BLOCK_SIZE + lane
        ok = (lane < BLOCK_SIZE) & (pos >= lo) & (pos < n)
        block = tl.load(block_table_ptr + r * table_stride + b).to(tl.int64)
        at = ((block * BLOCK_SIZE + lane) * H + h)[:, None] * HEAD_DIM + d
        mask = ok[:, None] & (d < HEAD_DIM)
        k = tl.load(key_cache_ptr + at, mask=mask, other=0.0)
        x = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * LOG2E)
        x = tl.where(ok[None, :], x, -1e30)
        m2 = tl.maximum(m, tl.max(x, axis=1, keep_dims=True))
        p = tl.where(ok[None, :], tl.exp2(x - m2), 0.0)
        a = tl.exp2(m - m2)
        mass = mass * a + tl.sum(p, axis=1, keep_dims=True)
        v = tl.load(value_cache_ptr + at, mask=mask, other=0.0)
        o = o * a + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m = m2
    row = (r * H * GROUP + h * GROUP + g) * NUM_SPLITS + s
    safe = tl.where(mass > 0.0, mass, 1.0)
    tl.store(output_ptr + row * HEAD_DIM + d, o / safe, mask=in_tile)
    if NUM_SPLITS > 1:
        lse = tl.where(mass > 0.0, (m + tl.log2(safe)) / LOG2E, float("-inf"))
        tl.store(lse_ptr + row, lse, mask=g < GROUP)


@triton.jit
def combine(m1, l1, m2, l2):
    m = tl.maximum(m1, m2)
    a = tl.where(m1 == m, 1.0, tl.exp(m1 - m))
    b = tl.where(m2 == m, 1.0, tl.exp(m2 - m))
    return m, l1 * a + l2 * b


@triton.jit
def reduce_splits_kernel(
    output_ptr,
    partial_ptr,
    lse_ptr,
    HEAD_DIM: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    DIM_TILE: tl.constexpr,
    SPLIT_TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, DIM_TILE)
    in_head = d < HEAD_DIM
    m = -float("inf")
    mass = 0.0
    o = tl.zeros([DIM_TILE], tl.float32)
    # one split after the other, the last first
    for i in range(NUM_SPLITS):
        s = NUM_SPLITS - 1 - i
        e = tl.load(lse_ptr + row * NUM_SPLITS + s)
        x = tl.load(partial_ptr + (row * NUM_SPLITS + s) * HEAD_DIM + d, mask=in_head, other=0.0)
        m2 = tl.maximum(m, e)
        if m2 > -float("inf"):
            a = tl.exp(m - m2)
            w = tl.exp(e - m2)
            o = o * a + x * w
            mass = mass * a + w
            m = m2
    tl.store(output_ptr + row * HEAD_DIM + d, o / tl.where(mass == 0.0, 1.0, mass), mask=in_head)


@triton.jit
def paged_prefill_kernel(
    output_ptr,
    query_ptr,
    key_cache_ptr,
    value_cache_ptr,
    block_table_ptr,
    query_start_loc_ptr,
    seq_lens_ptr,
    query_stride,
    table_stride,
    scale,
    window,
    BLOCK_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM_TILE: tl.constexpr,
    QUERY_TILE: tl.constexpr,
    KEY_TILE: tl.constexpr,
):
    # keys from the last tile to the first, full tiles without a mask of their own
    r = tl.program_id(2).to(tl.int64)
    head = tl.program_id(1)
    heads = tl.num_programs(1)
    t0 = tl.load(query_start_loc_ptr + r)
    nq = tl.load(query_start_loc_ptr + r + 1) - t0
    i0 = tl.program_id(0) * QUERY_TILE
    if i0 < nq:
        i = i0 + tl.arange(0, QUERY_TILE)
        d = tl.arange(0, DIM_TILE)
        t = (t0 + i).to(tl.int64)
        mask_q = (i < nq)[:, None] & (d < HEAD_DIM)[None, :]
        q = tl.load(
            query_ptr + t[:, None] * query_stride + head * HEAD_DIM + d[None, :],
            mask=mask_q,
            other=0.0,
        )
        done = tl.load(seq_lens_ptr + r) - nq
        at = done + i
        last = done + tl.minimum(i0 + QUERY_TILE, nq)
        first = tl.maximum(done + i0 - window + 1, 0)
        tiles = tl.cdiv(last - first, KEY_TILE)
        m = tl.full([QUERY_TILE], -1e30, tl.float32)
        mass = tl.zeros([QUERY_TILE], tl.float32)
        o = tl.zeros([QUERY_TILE, DIM_TILE], tl.float32)
        for j in range(0, tiles):
            start = first + (tiles - 1 - j) * KEY_TILE
            pos = start + tl.arange(0, KEY_TILE)
            inside = pos < last
            block = tl.load(
                block_table_ptr + r * table_stride + pos // BLOCK_SIZE, mask=inside, other=0
            )
            slot = block.to(tl.int64) * BLOCK_SIZE + pos % BLOCK_SIZE
            off = (slot * (heads // GROUP) + head // GROUP)[:, None] * HEAD_DIM + d[None, :]
            page = inside[:, None] & (d < HEAD_DIM)[None, :]
            k = tl.load(key_cache_ptr + off, mask=page, other=0.0)
            x = tl.dot(q, k.T, input_precision="ieee") * scale
            ok = (pos[None, :] <= at[:, None]) & (at[:, None] - pos[None, :] < window)
            x = tl.where(ok, x, -1e30)
            m2 = tl.maximum(m, tl.max(x, 1))
            p = tl.where(ok, tl.exp(x - m2[:, None]), 0.0)
            a = tl.exp(m - m2)
            mass = mass * a + tl.sum(p, 1)
            v = tl.load(value_cache_ptr + off, mask=page, other=0.0)
            o = tl.dot(p.to(v.dtype), v, acc=o * a[:, None], input_precision="ieee")
            m = m2
        tl.store(
            output_ptr + (t[:, None] * heads + head) * HEAD_DIM + d[None, :],
            o / mass[:, None],
            mask=mask_q,
        )
