"""Another right way: entries of the table once for a tile, and spread by tl.gather; splits by the
logarithm of a sum that is reduced pair by pair; rows of a prefill that know where they begin."""

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
    """Key and value as two rows of one tile."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping_ptr + token)
    column = tl.arange(0, ROW_TILE)[None, :]
    is_key = tl.arange(0, 2)[:, None] == 0
    mask = (column < ROW) & (slot >= 0)
    source = tl.where(is_key, key_ptr + token * key_stride, value_ptr + token * value_stride)
    target = tl.where(is_key, key_cache_ptr, value_cache_ptr) + slot * ROW
    tl.store(target + column, tl.load(source + column, mask=mask), mask=mask)


@triton.jit
def log_sum(a, b):
    """log(exp(a) + exp(b)), also of -inf and -inf."""
    top = tl.maximum(a, b)
    gap = tl.where(top == float("-inf"), 0.0, tl.minimum(a, b) - top)
    return top + tl.log(1.0 + tl.exp(gap))


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
    split = tl.arange(0, SPLIT_TILE)
    dim = tl.arange(0, DIM_TILE)
    lse = tl.load(lse_ptr + row * NUM_SPLITS + split, mask=split < NUM_SPLITS, other=float("-inf"))
    top = tl.max(lse, axis=0)
    lse = lse - tl.where(top == float("-inf"), 0.0, top)
    whole = tl.reduce(lse, 0, log_sum)
    share = tl.where(lse == float("-inf"), 0.0, tl.exp(lse - whole))
    at = partial_ptr + (row * NUM_SPLITS + split)[None, :] * HEAD_DIM + dim[:, None]
    inside = (dim < HEAD_DIM)[:, None] & (split < NUM_SPLITS)[None, :]
    average = tl.sum(tl.load(at, mask=inside, other=0.0) * share[None, :], axis=1)
    tl.store(output_ptr + row * HEAD_DIM + dim, average, mask=dim < HEAD_DIM)


@triton.jit
def step(query, key, value, seen, scale, top, mass, acc):
    """Take in some keys; what lies behind a score's end weighs nothing."""
    scores = tl.dot(query, key.T, input_precision="ieee") * scale
    scores = tl.where(seen, scores, float("-inf"))
    new = tl.maximum(top, tl.max(scores, axis=1))
    safe = tl.where(new == float("-inf"), 0.0, new)
    weights = tl.exp(scores - safe[:, None])
    shrink = tl.exp(top - safe)
    mass = mass * shrink + tl.sum(weights, axis=1)
    acc = acc * shrink[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
    return new, mass, acc


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
    """A tile touches at most KEY_TILE blocks and one more; its first ones are read once."""
    request = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    split = tl.program_id(2)
    g = tl.arange(0, GROUP_TILE)
    d = tl.arange(0, DIM_TILE)
    k = tl.arange(0, KEY_TILE)
    mine = (g < GROUP)[:, None] & (d < HEAD_DIM)[None, :]
    q_at = request * query_stride + (head * GROUP + g)[:, None] * HEAD_DIM + d[None, :]
    query = tl.load(query_ptr + q_at, mask=mine, other=0.0)
    length = tl.load(seq_lens_ptr + request)
    first = tl.maximum(length - window, 0)
    each = (length - first + NUM_SPLITS - 1) // NUM_SPLITS
    each = (each + BLOCK_SIZE - 1) // BLOCK_SIZE * BLOCK_SIZE  # whole blocks, so to speak
    begin = first + split * each
    end = tl.minimum(begin + each, length)
    top = tl.full([GROUP_TILE], float("-inf"), tl.float32)
    mass = tl.zeros([GROUP_TILE], tl.float32)
    acc = tl.zeros([GROUP_TILE, DIM_TILE], tl.float32)
    table = block_table_ptr + request * table_stride
    for start in range(begin, end, KEY_TILE):
        at = start + k
        seen = at < end
        first_block = start // BLOCK_SIZE
        last_block = (tl.minimum(start + KEY_TILE, end) - 1) // BLOCK_SIZE
        entries = tl.load(table + first_block + k, mask=first_block + k <= last_block, other=0)
        block = tl.gather(entries, tl.where(seen, at // BLOCK_SIZE - first_block, 0), 0)
        slot = block.to(tl.int64) * BLOCK_SIZE + at % BLOCK_SIZE
        offset = (slot * tl.num_programs(1) + head)[:, None] * HEAD_DIM + d[None, :]
        inside = seen[:, None] & (d < HEAD_DIM)[None, :]
        key = tl.load(key_cache_ptr + offset, mask=inside, other=0.0)
        value = tl.load(value_cache_ptr + offset, mask=inside, other=0.0)
        top, mass, acc = step(query, key, value, seen[None, :], scale, top, mass, acc)
    row = (request * tl.num_programs(1) * GROUP + head * GROUP + g) * NUM_SPLITS + split
    safe = tl.where(mass > 0.0, mass, 1.0)
    tl.store(output_ptr + row[:, None] * HEAD_DIM + d[None, :], acc / safe[:, None], mask=mine)
    if NUM_SPLITS > 1:
        tl.store(lse_ptr + row, top + tl.log(safe), mask=g < GROUP)


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
    """Each row has a first and a last key of its own; lanes of nobody have none. Tiles of keys go
    down from the last."""
    request = tl.program_id(2).to(tl.int64)
    head = tl.program_id(1)
    kv_head, kv_heads = head // GROUP, tl.num_programs(1) // GROUP
    token_first = tl.load(query_start_loc_ptr + request)
    token_end = tl.load(query_start_loc_ptr + request + 1)
    token = (token_first + tl.program_id(0) * QUERY_TILE + tl.arange(0, QUERY_TILE)).to(tl.int64)
    if token_first + tl.program_id(0) * QUERY_TILE >= token_end:
        return
    d = tl.arange(0, DIM_TILE)
    owned = token < token_end
    mine = owned[:, None] & (d < HEAD_DIM)[None, :]
    q_at = token[:, None] * query_stride + head * HEAD_DIM + d[None, :]
    query = tl.load(query_ptr + q_at, mask=mine, other=0.0)
    newest = (tl.load(seq_lens_ptr + request) - token_end + token).to(tl.int32)
    oldest = tl.maximum(newest - window + 1, 0)
    newest = tl.where(owned, newest, -1)
    end = tl.max(newest, axis=0) + 1
    begin = tl.min(tl.where(owned, oldest, end), axis=0)
    top = tl.full([QUERY_TILE], float("-inf"), tl.float32)
    mass = tl.zeros([QUERY_TILE], tl.float32)
    acc = tl.zeros([QUERY_TILE, DIM_TILE], tl.float32)
    table = block_table_ptr + request * table_stride
    for back in range(0, end - begin, KEY_TILE):
        at = end - back - KEY_TILE + tl.arange(0, KEY_TILE)
        known = at >= begin
        block = tl.load(table + at // BLOCK_SIZE, mask=known, other=0).to(tl.int64)
        offset = (block * BLOCK_SIZE + at % BLOCK_SIZE) * kv_heads + kv_head
        offset = offset[:, None] * HEAD_DIM + d[None, :]
        inside = known[:, None] & (d < HEAD_DIM)[None, :]
        key = tl.load(key_cache_ptr + offset, mask=inside, other=0.0)
        value = tl.load(value_cache_ptr + offset, mask=inside, other=0.0)
        seen = (at[None, :] >= oldest[:, None]) & (at[None, :] <= newest[:, None])
        top, mass, acc = step(query, key, value, seen & known[None, :], scale, top, mass, acc)
    to = output_ptr + (token[:, None] * tl.num_programs(1) + head) * HEAD_DIM + d[None, :]
    tl.store(to, acc / tl.where(mass > 0.0, mass, 1.0)[:, None], mask=mine)
