"""Splits that take turns by tiles; keys read transposed; tiles that begin at whole tiles."""

import triton
import triton.language as tl


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
    token = tl.program_id(0)
    slot = tl.load(slot_mapping_ptr + token)
    column = tl.arange(0, ROW_TILE)
    inside = (column < ROW) & (slot >= 0)
    k_row = key_ptr + tl.cast(token, tl.int64) * key_stride
    v_row = value_ptr + tl.cast(token, tl.int64) * value_stride
    out = slot * ROW + column
    tl.store(value_cache_ptr + out, tl.load(v_row + column, mask=inside), mask=inside)
    tl.store(key_cache_ptr + out, tl.load(k_row + column, mask=inside), mask=inside)


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
    g = tl.arange(0, GROUP_TILE)
    d = tl.arange(0, DIM_TILE)
    q = tl.load(
        query_ptr + r * query_stride + (h * GROUP + g)[:, None] * HEAD_DIM + d[None, :],
        mask=(g < GROUP)[:, None] & (d < HEAD_DIM)[None, :],
        other=0.0,
    )
    n = tl.load(seq_lens_ptr + r)
    lo = tl.maximum(n - window, 0)
    tiles = tl.cdiv(n - lo, KEY_TILE)
    m = tl.full([GROUP_TILE], float("-inf"), tl.float32)
    mass = tl.zeros([GROUP_TILE], tl.float32)
    o = tl.zeros([GROUP_TILE, DIM_TILE], tl.float32)
    # every NUM_SPLITS-th tile is mine
    for j in range(s, tiles, NUM_SPLITS):
        pos = lo + j * KEY_TILE + tl.arange(0, KEY_TILE)
        ok = pos < n
        block = tl.load(block_table_ptr + r * table_stride + pos // BLOCK_SIZE, mask=ok, other=0)
        slot = block.to(tl.int64) * BLOCK_SIZE + pos % BLOCK_SIZE
        off = slot[None, :] * (H * HEAD_DIM) + h * HEAD_DIM + d[:, None]
        page = ok[None, :] & (d < HEAD_DIM)[:, None]
        kt = tl.load(key_cache_ptr + off, mask=page, other=0.0)  # transposed as it is read
        x = tl.where(ok[None, :], scale * tl.dot(q, kt, input_precision="ieee"), float("-inf"))
        new = tl.maximum(m, tl.max(x, axis=1))
        p = tl.exp(x - new[:, None])
        a = tl.where(m == float("-inf"), 0.0, tl.exp(m - new))
        vt = tl.load(value_cache_ptr + off, mask=page, other=0.0)
        o = o * a[:, None] + tl.dot(p.to(vt.dtype), tl.permute(vt, (1, 0)), input_precision="ieee")
        mass = tl.fma(mass, a, tl.sum(p, axis=1))
        m = new
    head = r * (H * GROUP) + h * GROUP + g
    mine = g < GROUP
    o = tl.where(mass[:, None] > 0, o / mass[:, None], 0.0)
    at = (head * NUM_SPLITS + s)[:, None] * HEAD_DIM + d[None, :]
    tl.store(
        output_ptr + at,
        o.to(output_ptr.dtype.element_ty),
        mask=mine[:, None] & (d < HEAD_DIM)[None, :],
    )
    if NUM_SPLITS != 1:
        tl.store(
            lse_ptr + head * NUM_SPLITS + s, m + tl.log(tl.where(mass > 0, mass, 1.0)), mask=mine
        )


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
    s = tl.arange(0, SPLIT_TILE)
    d = tl.arange(0, DIM_TILE)
    e = tl.load(lse_ptr + row * NUM_SPLITS + s, mask=s < NUM_SPLITS, other=-float("inf"))
    top = tl.maximum(tl.max(e, 0), -1e38)
    w = tl.exp2((e - top) * 1.4426950408889634)
    w = w / tl.maximum(tl.sum(w, 0), 1e-30)
    page = (s < NUM_SPLITS)[None, :] & (d < HEAD_DIM)[:, None]
    p = tl.load(
        partial_ptr + (row * NUM_SPLITS + s)[None, :] * HEAD_DIM + d[:, None], mask=page, other=0.0
    )
    tl.store(output_ptr + row * HEAD_DIM + d, tl.sum(w[None, :] * p, 1), mask=d < HEAD_DIM)


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
    # scale and log2(e) go into the query once; rows behind the last one repeat nothing
    r = tl.program_id(2).to(tl.int64)
    head = tl.program_id(1)
    heads = tl.num_programs(1)
    t0 = tl.load(query_start_loc_ptr + r)
    t1 = tl.load(query_start_loc_ptr + r + 1)
    nq = t1 - t0
    n = tl.load(seq_lens_ptr + r)
    i = tl.program_id(0) * QUERY_TILE + tl.arange(0, QUERY_TILE)
    d = tl.arange(0, DIM_TILE)
    t = (t0 + i).to(tl.int64)
    mask_q = (i < nq)[:, None] & (d < HEAD_DIM)[None, :]
    q = tl.load(
        query_ptr + t[:, None] * query_stride + head * HEAD_DIM + d[None, :], mask=mask_q, other=0.0
    )
    at = n - nq + i
    begin = tl.maximum(n - nq + tl.program_id(0) * QUERY_TILE - window + 1, 0)
    end = tl.minimum(n, n - nq + (tl.program_id(0) + 1) * QUERY_TILE)
    end = tl.where(tl.program_id(0) * QUERY_TILE < nq, end, begin)
    # the first tile that is a whole one
    begin = begin // KEY_TILE * KEY_TILE
    m = tl.full([QUERY_TILE], float("-inf"), tl.float32)
    mass = tl.zeros([QUERY_TILE], tl.float32)
    o = tl.zeros([QUERY_TILE, DIM_TILE], tl.float32)
    low = tl.maximum(n - nq + tl.program_id(0) * QUERY_TILE - window + 1, 0)
    for start in range(begin, end, KEY_TILE):
        pos = start + tl.arange(0, KEY_TILE)
        ok = (pos < end) & (pos >= low)
        block = tl.load(block_table_ptr + r * table_stride + pos // BLOCK_SIZE, mask=ok, other=0)
        slot = block.to(tl.int64) * BLOCK_SIZE + pos % BLOCK_SIZE
        off = (slot * (heads // GROUP) + head // GROUP)[:, None] * HEAD_DIM + d[None, :]
        page = ok[:, None] & (d < HEAD_DIM)[None, :]
        k = tl.load(key_cache_ptr + off, mask=page, other=0.0)
        x = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * 1.4426950408889634)
        gap = at[:, None] - pos[None, :]
        x = tl.where((gap >= 0) & (gap < window) & ok[None, :], x, float("-inf"))
        top = tl.maximum(m, tl.max(x, 1))
        base = tl.where(top == float("-inf"), 0.0, top)
        p = tl.exp2(x - base[:, None])
        a = tl.exp2(m - base)
        mass = mass * a + tl.sum(p, 1)
        v = tl.load(value_cache_ptr + off, mask=page, other=0.0)
        o = tl.dot(p.to(v.dtype), v, o * a[:, None], input_precision="ieee")
        m = top
    o = o / tl.where(mass == 0.0, 1.0, mass)[:, None]
    tl.store(output_ptr + (t[:, None] * heads + head) * HEAD_DIM + d[None, :], o, mask=mask_q)
