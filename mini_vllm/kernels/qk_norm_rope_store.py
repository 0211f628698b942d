"""Norm, rotation and store of a step's queries, keys and values in one launch. Only the kernel
lives here: `kernels/qkv.py` says how it is launched.

    q ── norm ── rotate ──► where it was          three launches, and four trips of q and k
    k ── norm ── rotate ──► its slot              through memory, become one of each
    v ────────────────────► its slot
"""

import triton
import triton.language as tl


@triton.jit
def qk_norm_rope_store_kernel(
    qkv_ptr,  # [T, NUM_HEADS + 2 * NUM_KV_HEADS, HEAD_DIM], tokens `qkv_stride` apart
    query_weight_ptr,  # [HEAD_DIM]; not read without HAS_NORM
    key_weight_ptr,  # the same
    cos_ptr,  # [T, ROTARY_DIM]: both halves the same
    sin_ptr,  # [T, ROTARY_DIM]: negative in the first half
    key_cache_ptr,  # [num_slots, NUM_KV_HEADS, HEAD_DIM]
    value_cache_ptr,  # the same
    slot_mapping_ptr,  # [T] int64; -1 = do not store
    qkv_stride,
    eps,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HEADS_TILE: tl.constexpr,
    HALF_TILE: tl.constexpr,
    REST_TILE: tl.constexpr,
):
    """Some heads of one token, be they queries, keys or values. Grid: (T, tiles of all heads).

    Queries are written back where they lie; keys and values go to the token's slot, and what lies
    in `qkv` of them stays as it is. Of a head the first ROTARY_DIM features turn, in pairs of one
    from either half, and the rest is only normalised. The numbers are rounded where the three steps
    round them: the normalised row, the row times its weight, the turned row, each to the dtype of
    `qkv`. Only the order in which squares are summed may be another.

    Source: vllm/compilation/passes/fusion/qk_norm_rope_fusion.py#L31-L51 (QkNormRopePattern)
    @ v0.22.1.
    Source: vllm/compilation/passes/fusion/rope_kvcache_fusion.py#L39-L70
    (fused_rope_and_unified_kv_cache_update_impl) @ v0.22.1.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS_TILE + tl.arange(0, HEADS_TILE)
    slot = tl.load(slot_mapping_ptr + token)
    # Without a slot a token needs its queries only.
    is_needed = head < tl.where(slot >= 0, NUM_HEADS + 2 * NUM_KV_HEADS, NUM_HEADS)
    is_query, turns = head < NUM_HEADS, head < NUM_HEADS + NUM_KV_HEADS
    is_key = is_needed & turns & (head >= NUM_HEADS)
    is_value = is_needed & (head >= NUM_HEADS + NUM_KV_HEADS)
    is_needed, turns = is_needed[:, None], turns[:, None]

    pair = tl.arange(0, HALF_TILE)
    rest = ROTARY_DIM + tl.arange(0, REST_TILE)
    in_half, in_rest = pair < ROTARY_DIM // 2, rest < HEAD_DIM
    row_ptr = qkv_ptr + token * qkv_stride + head * HEAD_DIM
    first_ptr, second_ptr = row_ptr, row_ptr + ROTARY_DIM // 2
    first = _load(first_ptr, pair, is_needed & in_half[None, :])
    second = _load(second_ptr, pair, is_needed & in_half[None, :])
    tail = _load(row_ptr, rest, is_needed & in_rest[None, :])
    a, b, c = first, second, tail
    if HAS_NORM:
        squares = tl.sum(_square(a) + _square(b), axis=1) + tl.sum(_square(c), axis=1)
        scale = tl.rsqrt(squares / HEAD_DIM + eps)[:, None]
        partner = pair + ROTARY_DIM // 2
        a = _weighted(a, scale, query_weight_ptr, key_weight_ptr, pair, in_half, is_query)
        b = _weighted(b, scale, query_weight_ptr, key_weight_ptr, partner, in_half, is_query)
        c = _weighted(c, scale, query_weight_ptr, key_weight_ptr, rest, in_rest, is_query)

    angle = token * ROTARY_DIM + ROTARY_DIM // 2 + pair
    cos = tl.load(cos_ptr + angle, mask=in_half, other=0.0).to(tl.float32)[None, :]
    sin = tl.load(sin_ptr + angle, mask=in_half, other=0.0).to(tl.float32)[None, :]
    a, b = a.to(tl.float32), b.to(tl.float32)
    first = tl.where(turns, (a * cos - b * sin).to(first.dtype), first)
    second = tl.where(turns, (b * cos + a * sin).to(second.dtype), second)
    tail = tl.where(turns, c, tail)

    kv_row = slot * NUM_KV_HEADS + (head - NUM_HEADS) % NUM_KV_HEADS
    key_ptr, value_ptr = key_cache_ptr + kv_row * HEAD_DIM, value_cache_ptr + kv_row * HEAD_DIM
    half: tl.constexpr = ROTARY_DIM // 2
    _store(row_ptr, pair, first, is_query, in_half)
    _store(row_ptr + half, pair, second, is_query, in_half)
    _store(row_ptr, rest, tail, is_query, in_rest)
    _store(key_ptr, pair, first, is_key, in_half)
    _store(key_ptr + half, pair, second, is_key, in_half)
    _store(key_ptr, rest, tail, is_key, in_rest)
    _store(value_ptr, pair, first, is_value, in_half)
    _store(value_ptr + half, pair, second, is_value, in_half)
    _store(value_ptr, rest, tail, is_value, in_rest)


@triton.jit
def _load(row_ptr, column, mask):
    """Some columns of several rows."""
    return tl.load(row_ptr[:, None] + column[None, :], mask=mask, other=0.0)


@triton.jit
def _store(row_ptr, column, numbers, is_row, is_column):
    """Some columns of several rows; rounded to the dtype of where they go."""
    mask = is_row[:, None] & is_column[None, :]
    tl.store(row_ptr[:, None] + column[None, :], numbers, mask=mask)


@triton.jit
def _square(x):
    x32 = x.to(tl.float32)
    return x32 * x32


@triton.jit
def _weighted(x, scale, query_weight_ptr, key_weight_ptr, column, is_column, is_query):
    """x * scale * weight, rounded to the dtype of x behind each product."""
    normalised = (x.to(tl.float32) * scale).to(x.dtype).to(tl.float32)
    query_weight = tl.load(query_weight_ptr + column, mask=is_column, other=0.0).to(tl.float32)
    key_weight = tl.load(key_weight_ptr + column, mask=is_column, other=0.0).to(tl.float32)
    weight = tl.where(is_query[:, None], query_weight[None, :], key_weight[None, :])
    return (normalised * weight).to(x.dtype)
