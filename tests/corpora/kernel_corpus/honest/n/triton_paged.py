"""Another right way: a tile of keys is two halves in one product with three axes, and each half has
a softmax of its own until the end. Splits are joined by a reduction of triples, rows are stored
piece by piece, with promises that hold.
"""

import triton
import triton.language as tl

PIECE = tl.constexpr(64)


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
    for begin in tl.range(0, ROW, PIECE, num_stages=2):
        begin = tl.multiple_of(begin, PIECE)
        column = tl.max_contiguous(tl.multiple_of(begin + tl.arange(0, PIECE), PIECE), PIECE)
        inside = column < ROW
        key = tl.load(key_ptr + token * key_stride + column, mask=inside)
        tl.store(key_cache_ptr + slot * ROW + column, key, mask=inside)
        value = tl.load(value_ptr + token * value_stride + column, mask=inside)
        tl.store(value_cache_ptr + slot * ROW + column, value, mask=inside)


@triton.jit
def zero_for_none(maximum):
    return tl.where(maximum == float("-inf"), 0.0, maximum)


@triton.jit
def in_halves(start, KEY_TILE: tl.constexpr):
    """Positions [2, KEY_TILE / 2]."""
    half = tl.arange(0, 2) * (KEY_TILE // 2)
    return start + half[:, None] + tl.arange(0, KEY_TILE // 2)[None, :]


@triton.jit
def both_halves(tile):
    """A tile [M, N] twice: [2, M, N]."""
    return tl.broadcast_to(tile[None, :, :], (2, tile.shape[0], tile.shape[1]))


@triton.jit
def take_in(scores, value, top, mass, acc):
    """One more tile [2, M, N] of a softmax for each half; sums are of the rounded weights."""
    new_top = tl.maximum(top, tl.max(scores, axis=2))
    shift = zero_for_none(new_top)
    weights = tl.exp(scores - shift[:, :, None])
    fade = tl.exp(top - shift)
    acc = acc * fade[:, :, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
    return new_top, mass * fade + tl.sum(weights, axis=2), acc


@triton.jit
def join_halves(top, mass, acc):
    most = tl.max(top, axis=0)
    share = tl.exp(top - zero_for_none(most)[None, :])
    return most, tl.sum(mass * share, axis=0), tl.sum(acc * share[:, :, None], axis=0)


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
    kv_head, split = tl.program_id(1), tl.program_id(2)
    kv_heads = tl.num_programs(1)
    member, dim = tl.arange(0, GROUP_TILE), tl.arange(0, DIM_TILE)
    head = kv_head * GROUP + member
    mine = (member < GROUP)[:, None] & (dim < HEAD_DIM)[None, :]
    at = request * query_stride + head[:, None] * HEAD_DIM + dim[None, :]
    query = both_halves(tl.load(query_ptr + at, mask=mine, other=0.0))

    length = tl.load(seq_lens_ptr + request)
    oldest = tl.maximum(length - window, 0)
    tiles = tl.cdiv(tl.cdiv(length - oldest, KEY_TILE), NUM_SPLITS)
    begin = oldest + split * tiles * KEY_TILE
    end = tl.minimum(begin + tiles * KEY_TILE, length)
    top = tl.full([2, GROUP_TILE], float("-inf"), tl.float32)
    mass = tl.zeros([2, GROUP_TILE], tl.float32)
    acc = tl.zeros([2, GROUP_TILE, DIM_TILE], tl.float32)
    for start in range(begin, end, KEY_TILE):
        position = in_halves(start, KEY_TILE)
        seen = position < end
        entry = block_table_ptr + request * table_stride + position // BLOCK_SIZE
        block = tl.load(entry, mask=seen, other=0).to(tl.int64)
        row = (block * BLOCK_SIZE + position % BLOCK_SIZE) * kv_heads + kv_head
        place = row[:, :, None] * HEAD_DIM + dim[None, None, :]
        real = seen[:, :, None] & (dim < HEAD_DIM)[None, None, :]
        key = tl.load(key_cache_ptr + place, mask=real, other=0.0)
        scores = tl.dot(query, tl.permute(key, (0, 2, 1)), input_precision="ieee") * scale
        scores = tl.where(seen[:, None, :], scores, float("-inf"))
        value = tl.load(value_cache_ptr + place, mask=real, other=0.0)
        top, mass, acc = take_in(scores, value, top, mass, acc)

    most, total, acc = join_halves(top, mass, acc)
    total = tl.where(total == 0.0, 1.0, total)
    out = (request * kv_heads * GROUP + head) * NUM_SPLITS + split
    tl.store(output_ptr + out[:, None] * HEAD_DIM + dim[None, :], acc / total[:, None], mask=mine)
    if NUM_SPLITS > 1:
        tl.store(lse_ptr + out, most + tl.log(total), mask=member < GROUP)


@triton.jit
def joined(lse, mass, average, other_lse, other_mass, other_average):
    most = tl.maximum(lse, other_lse)
    left = tl.exp(lse - zero_for_none(most))
    right = tl.exp(other_lse - zero_for_none(most))
    return most, mass * left + other_mass * right, average * left + other_average * right


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
    split, dim = tl.arange(0, SPLIT_TILE)[:, None], tl.arange(0, DIM_TILE)[None, :]
    real = (split < NUM_SPLITS) & (dim < HEAD_DIM)
    lse_at = lse_ptr + row * NUM_SPLITS + split + 0 * dim
    lse = tl.load(lse_at, mask=real, other=float("-inf"))
    partial_at = partial_ptr + (row * NUM_SPLITS + split) * HEAD_DIM + dim
    partial = tl.load(partial_at, mask=real, other=0.0)
    ones = tl.full([SPLIT_TILE, DIM_TILE], 1.0, tl.float32)
    _, mass, average = tl.reduce((lse, ones, partial), 0, joined)
    column = tl.arange(0, DIM_TILE)
    average = average / tl.where(mass == 0.0, 1.0, mass)
    tl.store(output_ptr + row * HEAD_DIM + column, average, mask=column < HEAD_DIM)


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
    request, head = tl.program_id(2).to(tl.int64), tl.program_id(1)
    heads = tl.num_programs(1)
    begin = tl.load(query_start_loc_ptr + request)
    count = tl.load(query_start_loc_ptr + request + 1) - begin
    first_row = tl.program_id(0) * QUERY_TILE
    if first_row < count:
        row, dim = first_row + tl.arange(0, QUERY_TILE), tl.arange(0, DIM_TILE)
        mine = (row < count)[:, None] & (dim < HEAD_DIM)[None, :]
        token = begin.to(tl.int64) + row
        at = token[:, None] * query_stride + head * HEAD_DIM + dim[None, :]
        query = both_halves(tl.load(query_ptr + at, mask=mine, other=0.0))

        before = tl.load(seq_lens_ptr + request) - count
        stands = before + row
        oldest = tl.maximum(before + first_row + 1 - window, 0)
        end = before + tl.minimum(first_row + QUERY_TILE, count)
        top = tl.full([2, QUERY_TILE], float("-inf"), tl.float32)
        mass = tl.zeros([2, QUERY_TILE], tl.float32)
        acc = tl.zeros([2, QUERY_TILE, DIM_TILE], tl.float32)
        for start in range(oldest, end, KEY_TILE):
            position = in_halves(start, KEY_TILE)
            there = position < end
            entry = block_table_ptr + request * table_stride + position // BLOCK_SIZE
            block = tl.load(entry, mask=there, other=0).to(tl.int64)
            slot = block * BLOCK_SIZE + position % BLOCK_SIZE
            cache_row = slot * (heads // GROUP) + head // GROUP
            place = cache_row[:, :, None] * HEAD_DIM + dim[None, None, :]
            real = there[:, :, None] & (dim < HEAD_DIM)[None, None, :]
            key = tl.load(key_cache_ptr + place, mask=real, other=0.0)
            scores = tl.dot(query, tl.permute(key, (0, 2, 1)), input_precision="ieee") * scale
            back = stands[None, :, None] - position[:, None, :]
            scores = tl.where((back >= 0) & (back < window), scores, float("-inf"))
            value = tl.load(value_cache_ptr + place, mask=real, other=0.0)
            top, mass, acc = take_in(scores, value, top, mass, acc)

        _, total, acc = join_halves(top, mass, acc)
        acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        out = (token[:, None] * heads + head) * HEAD_DIM + dim[None, :]
        tl.store(output_ptr + out, acc, mask=mine)
