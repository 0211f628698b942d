"""Another right way: a way of its own for a head that shares nothing, one table entry for a whole
run of a tile where blocks allow it, and sums by a function of one's own.
"""

import triton
import triton.language as tl


@triton.jit
def add_up(tile):
    """The sum over the last axis, halves first."""
    return tl.reduce(tile, 1, plus)


@triton.jit
def plus(a, b):
    return a + b


@triton.jit
def slots_of(table_ptr, start, end, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr):
    """Slots of TILE tokens from `start`, which is a multiple of TILE; 0 behind `end`."""
    POWER: tl.constexpr = (BLOCK_SIZE & (BLOCK_SIZE - 1)) == 0
    if POWER and BLOCK_SIZE < TILE:
        entry = tl.arange(0, TILE // BLOCK_SIZE)
        known = start + entry * BLOCK_SIZE < end
        block = tl.load(table_ptr + start // BLOCK_SIZE + entry, mask=known, other=0).to(tl.int64)
        first = block[:, None] * BLOCK_SIZE
        slot = tl.reshape(first + tl.arange(0, BLOCK_SIZE)[None, :], (TILE,))
    else:
        position = start + tl.arange(0, TILE)
        block = tl.load(table_ptr + position // BLOCK_SIZE, mask=position < end, other=0)
        slot = block.to(tl.int64) * BLOCK_SIZE + position % BLOCK_SIZE
    return slot


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
    both = tl.arange(0, 2)[:, None]
    column = tl.arange(0, ROW_TILE)[None, :]
    mask = (column < ROW) & (slot >= 0) & (both >= 0)
    key = tl.load(key_ptr + token * key_stride + column, mask=(column < ROW) & (slot >= 0), other=0)
    tl.store(key_cache_ptr + slot * ROW + column, key, mask=(column < ROW) & (slot >= 0))
    value = tl.load(value_ptr + token * value_stride + column + both * 0, mask=mask & (both == 0))
    tl.store(value_cache_ptr + slot * ROW + column + both * 0, value, mask=mask & (both == 0))


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
    request = tl.program_id(0).to(tl.int64)
    kv_head, part, kv_heads = tl.program_id(1), tl.program_id(2), tl.num_programs(1)
    feature = tl.arange(0, DIM_TILE)
    in_head = feature < HEAD_DIM
    table_ptr = block_table_ptr + request * table_stride
    end = tl.load(seq_lens_ptr + request)
    begin = tl.maximum(end - window, 0)
    # Tiles begin at multiples of their size; the first may begin before the window.
    low, high = begin // KEY_TILE, tl.cdiv(end, KEY_TILE)
    each = tl.cdiv(high - low, NUM_SPLITS)
    from_tile = low + part * each
    to_tile = tl.minimum(from_tile + each, high)
    if GROUP == 1:
        q = tl.load(
            query_ptr + request * query_stride + kv_head * HEAD_DIM + feature,
            mask=in_head,
            other=0.0,
        )
        q = q.to(tl.float32)
        top = tl.full((1,), float("-inf"), tl.float32)
        mass = tl.zeros((1,), tl.float32)
        acc = tl.zeros((DIM_TILE,), tl.float32)
        for tile in range(from_tile, to_tile):
            position = tile * KEY_TILE + tl.arange(0, KEY_TILE)
            seen = (position >= begin) & (position < end)
            entry = tl.load(table_ptr + position // BLOCK_SIZE, mask=seen, other=0).to(tl.int64)
            slot = entry * BLOCK_SIZE + position % BLOCK_SIZE
            at = (slot * kv_heads + kv_head)[:, None] * HEAD_DIM + feature[None, :]
            mask = seen[:, None] & in_head[None, :]
            k = tl.load(key_cache_ptr + at, mask=mask, other=0.0).to(tl.float32)
            scores = tl.where(seen, add_up(k * q[None, :]) * scale, float("-inf"))
            higher = tl.maximum(top, tl.max(scores, 0))
            shift = tl.where(higher == float("-inf"), 0.0, higher)
            weights = tl.exp(scores - shift)
            fade = tl.exp(top - shift)
            v = tl.load(value_cache_ptr + at, mask=mask, other=0.0).to(tl.float32)
            acc = acc * fade + tl.sum(weights[:, None] * v, 0)
            mass = mass * fade + tl.sum(weights, 0)
            top = higher
        row = (request * kv_heads + kv_head) * NUM_SPLITS + part
        safe = tl.where(mass == 0.0, 1.0, mass)
        tl.store(output_ptr + row * HEAD_DIM + feature, acc / safe, mask=in_head)
        if NUM_SPLITS > 1:
            tl.store(lse_ptr + row + tl.arange(0, 1), top + tl.log(safe))
    else:
        member = tl.arange(0, GROUP_TILE)
        q_at = (kv_head * GROUP + member[:, None]) * HEAD_DIM + feature[None, :]
        q_mask = (member < GROUP)[:, None] & in_head[None, :]
        q = tl.load(query_ptr + request * query_stride + q_at, mask=q_mask, other=0.0)
        tops = tl.full((GROUP_TILE,), float("-inf"), tl.float32)
        masses = tl.zeros((GROUP_TILE,), tl.float32)
        accs = tl.zeros((GROUP_TILE, DIM_TILE), tl.float32)
        for tile in range(from_tile, to_tile):
            position = tile * KEY_TILE + tl.arange(0, KEY_TILE)
            seen = (position >= begin) & (position < end)
            entry = tl.load(table_ptr + position // BLOCK_SIZE, mask=seen, other=0).to(tl.int64)
            slot = entry * BLOCK_SIZE + position % BLOCK_SIZE
            at = (slot * kv_heads + kv_head)[None, :] * HEAD_DIM + feature[:, None]
            mask = seen[None, :] & in_head[:, None]
            k = tl.load(key_cache_ptr + at, mask=mask, other=0.0)
            scores = tl.dot(q, k, input_precision="ieee") * scale
            scores = tl.where(seen[None, :], scores, float("-inf"))
            highers = tl.maximum(tops, tl.max(scores, 1))
            shifts = tl.where(highers == float("-inf"), 0.0, highers)
            weights = tl.exp(scores - shifts[:, None])
            fades = tl.exp(tops - shifts)
            v = tl.load(value_cache_ptr + at, mask=mask, other=0.0)
            accs = accs * fades[:, None]
            accs += tl.dot(weights.to(v.dtype), tl.trans(v), input_precision="ieee")
            masses = masses * fades + add_up(weights)
            tops = highers
        head = kv_head * GROUP + member
        rows = (request * kv_heads * GROUP + head) * NUM_SPLITS + part
        safes = tl.where(masses == 0.0, 1.0, masses)
        tl.store(
            output_ptr + rows[:, None] * HEAD_DIM + feature[None, :],
            accs / safes[:, None],
            mask=(member < GROUP)[:, None] & in_head[None, :],
        )
        if NUM_SPLITS > 1:
            tl.store(lse_ptr + rows, tops + tl.log(safes), mask=member < GROUP)


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
    part, feature = tl.arange(0, SPLIT_TILE), tl.arange(0, DIM_TILE)
    lse = tl.load(lse_ptr + row * NUM_SPLITS + part, mask=part < NUM_SPLITS, other=float("-inf"))
    largest = tl.max(lse, 0)
    largest = tl.where(largest == float("-inf"), 0.0, largest)
    mass = largest + tl.log(tl.sum(tl.exp(lse - largest), 0))
    share = tl.where(lse == float("-inf"), 0.0, tl.exp(lse - mass))
    at = (row * NUM_SPLITS + part[None, :]) * HEAD_DIM + feature[:, None]
    mask = (part < NUM_SPLITS)[None, :] & (feature < HEAD_DIM)[:, None]
    partial = tl.load(partial_ptr + at, mask=mask, other=0.0)
    tl.store(
        output_ptr + row * HEAD_DIM + feature,
        add_up(partial * share[None, :]),
        mask=feature < HEAD_DIM,
    )


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
    request = tl.program_id(2).to(tl.int64)
    head, heads = tl.program_id(1), tl.num_programs(1)
    begin = tl.load(query_start_loc_ptr + request).to(tl.int64)
    count = (tl.load(query_start_loc_ptr + request + 1) - begin).to(tl.int32)
    top = tl.program_id(0) * QUERY_TILE
    if top >= count:
        return
    computed = tl.load(seq_lens_ptr + request) - count
    feature, step = tl.arange(0, DIM_TILE), tl.arange(0, QUERY_TILE)
    row = begin + top + step
    in_tile = (top + step < count)[:, None] & (feature < HEAD_DIM)[None, :]
    q_at = row[:, None] * query_stride + head * HEAD_DIM + feature[None, :]
    q = tl.load(query_ptr + q_at, mask=in_tile, other=0.0)
    own = computed + top + step
    last = computed + tl.minimum(top + QUERY_TILE, count)
    first = tl.maximum(computed + top + 1 - window, 0)
    table_ptr = block_table_ptr + request * table_stride
    tops = tl.full((QUERY_TILE,), float("-inf"), tl.float32)
    masses = tl.zeros((QUERY_TILE,), tl.float32)
    accs = tl.zeros((QUERY_TILE, DIM_TILE), tl.float32)
    for tile in range(first // KEY_TILE, (last + KEY_TILE - 1) // KEY_TILE):
        position = tile * KEY_TILE + tl.arange(0, KEY_TILE)
        there = (position >= first) & (position < last)
        if (tile * KEY_TILE >= first) & (BLOCK_SIZE <= KEY_TILE):
            slot = slots_of(table_ptr, tile * KEY_TILE, last, BLOCK_SIZE, KEY_TILE)
        else:
            entry = tl.load(table_ptr + position // BLOCK_SIZE, mask=there, other=0).to(tl.int64)
            slot = entry * BLOCK_SIZE + position % BLOCK_SIZE
        at = (slot * (heads // GROUP) + head // GROUP)[:, None] * HEAD_DIM + feature[None, :]
        mask = there[:, None] & (feature < HEAD_DIM)[None, :]
        k = tl.load(key_cache_ptr + at, mask=mask, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        ago = own[:, None] - position[None, :]
        scores = tl.where((ago >= 0) & (ago < window) & there[None, :], scores, float("-inf"))
        highers = tl.maximum(tops, tl.max(scores, 1))
        shifts = tl.where(highers == float("-inf"), 0.0, highers)
        weights = tl.exp(scores - shifts[:, None])
        fades = tl.exp(tops - shifts)
        v = tl.load(value_cache_ptr + at, mask=mask, other=0.0)
        accs = accs * fades[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        masses = masses * fades + tl.sum(weights, 1)
        tops = highers
    accs = accs / tl.where(masses == 0.0, 1.0, masses)[:, None]
    out_at = (row * heads + head)[:, None] * HEAD_DIM + feature[None, :]
    tl.store(output_ptr + out_at, accs, mask=in_tile)
