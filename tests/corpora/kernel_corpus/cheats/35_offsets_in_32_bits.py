"""Offsets in 32 bits: half the registers, and right in every cache of less than 2^31 elements."""

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
    slot = tl.load(slot_mapping_ptr + token).to(tl.int32)
    if slot >= 0:
        column = tl.arange(0, ROW_TILE)
        inside = column < ROW
        key = tl.load(key_ptr + token * key_stride + column, mask=inside, other=0.0)
        value = tl.load(value_ptr + token * value_stride + column, mask=inside, other=0.0)
        tl.store(key_cache_ptr + slot * ROW + column, key, mask=inside)
        tl.store(value_cache_ptr + slot * ROW + column, value, mask=inside)
