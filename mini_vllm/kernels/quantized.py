"""Products of quantised numbers, and what makes them.

    per_token_quant_int8_kernel   a token's activations as int8, with their scale
    w8a8_gemm_kernel              int8 times int8; the scales are applied to the sum
    w4a16_gemm_kernel             activations times 4-bit weights, unpacked on the way
    store_kv_int8_kernel          keys and values into their pages, with a scale behind each head

Only kernels live here: `kernels/quantization.py` says how each is launched.
"""

import triton
import triton.language as tl

ROUND = tl.constexpr(12582912.0)
"""1.5 * 2^23: near it float32 has no fractions, so adding and subtracting it rounds, half to even,
a number whose magnitude is below 2^22."""


@triton.jit
def per_token_quant_int8_kernel(
    output_ptr,  # [T, SIZE] int8
    scale_ptr,  # [T] float32
    x_ptr,  # [T, SIZE], tokens `x_stride` apart
    x_stride,
    SIZE: tl.constexpr,
    SIZE_TILE: tl.constexpr,
    MIN_SCALE: tl.constexpr,
):
    """One token as int8: x / scale, rounded half to even; scale = largest |x| / 127. Grid: (T,).

    The scale is at least MIN_SCALE, so that a token of zeros stays zeros. In float32.
    Source: vllm/model_executor/layers/quantization/utils/int8_utils.py#L106-L156
    (per_token_quant_int8) @ v0.22.1.
    """
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, SIZE_TILE)
    inside = column < SIZE
    x = tl.load(x_ptr + token * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(x), axis=0) / 127.0, MIN_SCALE)
    quantized = (x / scale + ROUND) - ROUND
    tl.store(scale_ptr + token, scale)
    tl.store(output_ptr + token * SIZE + column, quantized.to(tl.int8), mask=inside)


@triton.jit
def w8a8_gemm_kernel(
    output_ptr,  # [T, N] float32
    x_ptr,  # [T, K] int8
    weight_ptr,  # [N, K] int8
    x_scale_ptr,  # [T] float32
    weight_scale_ptr,  # [N] float32
    num_tokens,
    N: tl.constexpr,
    K: tl.constexpr,
    TOKEN_TILE: tl.constexpr,
    ROW_TILE: tl.constexpr,
    COLUMN_TILE: tl.constexpr,
):
    """A tile of (x @ weight^T) * scale of the token * scale of the row. Grid: (tiles of T, of N).

    The sum is of whole numbers, in int32: no rounding until the scales.
    Source: vllm/model_executor/layers/quantization/compressed_tensors/triton_scaled_mm.py#L19-L136
    (scaled_mm_kernel) @ v0.22.1.
    """
    token = tl.program_id(0).to(tl.int64) * TOKEN_TILE + tl.arange(0, TOKEN_TILE)
    row = tl.program_id(1).to(tl.int64) * ROW_TILE + tl.arange(0, ROW_TILE)
    is_token, is_row = token < num_tokens, row < N
    total = tl.zeros((TOKEN_TILE, ROW_TILE), dtype=tl.int32)
    for start in range(0, K, COLUMN_TILE):
        column = start + tl.arange(0, COLUMN_TILE)
        inside = column < K
        x_mask, weight_mask = is_token[:, None] & inside[None, :], is_row[:, None] & inside[None, :]
        x = tl.load(x_ptr + token[:, None] * K + column[None, :], mask=x_mask, other=0)
        weight_at = weight_ptr + row[:, None] * K + column[None, :]
        weight = tl.load(weight_at, mask=weight_mask, other=0)
        total = tl.dot(x, tl.trans(weight), acc=total, out_dtype=tl.int32)
    x_scale = tl.load(x_scale_ptr + token, mask=is_token, other=0.0)
    weight_scale = tl.load(weight_scale_ptr + row, mask=is_row, other=0.0)
    output = total.to(tl.float32) * x_scale[:, None] * weight_scale[None, :]
    output_at = output_ptr + token[:, None] * N + row[None, :]
    tl.store(output_at, output, mask=is_token[:, None] & is_row[None, :])


@triton.jit
def w4a16_gemm_kernel(
    output_ptr,  # [T, N]
    x_ptr,  # [T, K], tokens `x_stride` apart
    words_ptr,  # [N, WORDS] int32: eight columns a word, the first in its lowest bits
    scale_ptr,  # [N, GROUPS] float32
    zero_ptr,  # [N, GROUPS] uint8
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
    """A tile of x @ weight^T with weight = (number - zero) * scale. Grid: (tiles of T, of N).

    Groups are K / GROUPS columns wide; one may end inside a tile of columns. Weights are computed
    in float32 and rounded to the dtype of x; the sum is in float32.
    Source: vllm/model_executor/layers/quantization/awq_triton.py#L109-L227 (awq_gemm_kernel)
    @ v0.22.1.
    """
    token = tl.program_id(0).to(tl.int64) * TOKEN_TILE + tl.arange(0, TOKEN_TILE)
    row = tl.program_id(1).to(tl.int64) * ROW_TILE + tl.arange(0, ROW_TILE)
    is_token, is_row = token < num_tokens, row < N
    total = tl.zeros((TOKEN_TILE, ROW_TILE), dtype=tl.float32)
    for start in range(0, K, COLUMN_TILE):
        column = start + tl.arange(0, COLUMN_TILE)
        inside = column < K
        x_mask, weight_mask = is_token[:, None] & inside[None, :], is_row[:, None] & inside[None, :]
        x = tl.load(x_ptr + token[:, None] * x_stride + column[None, :], mask=x_mask, other=0.0)
        words_at = words_ptr + row[:, None] * WORDS + column[None, :] // 8
        words = tl.load(words_at, mask=weight_mask, other=0)
        numbers = (words >> (column[None, :] % 8 * 4)) & 15
        group = row[:, None] * GROUPS + column[None, :] // (K // GROUPS)
        scale = tl.load(scale_ptr + group, mask=weight_mask, other=0.0)
        zero = tl.load(zero_ptr + group, mask=weight_mask, other=0).to(tl.int32)
        weight = ((numbers - zero).to(tl.float32) * scale).to(x.dtype)
        total = tl.dot(x, tl.trans(weight), acc=total, input_precision="ieee")
    output_at = output_ptr + token[:, None] * N + row[None, :]
    tl.store(output_at, total, mask=is_token[:, None] & is_row[None, :])


@triton.jit
def store_kv_int8_kernel(
    key_ptr,  # [T, H, HEAD_DIM], tokens `key_stride` apart
    value_ptr,  # the same, `value_stride` apart
    key_cache_ptr,  # [num_slots, H, HEAD_DIM + 4] int8
    value_cache_ptr,
    key_scale_ptr,  # the same memory as float32: [num_slots, H, HEAD_DIM / 4 + 1]
    value_scale_ptr,
    slot_mapping_ptr,  # [T] int64; -1: store nothing
    key_stride,
    value_stride,
    HEAD_DIM: tl.constexpr,
    DIM_TILE: tl.constexpr,
    MIN_SCALE: tl.constexpr,
):
    """One head of one token as int8, and its scale behind it. Grid: (T, H).

    x / scale, rounded half to even, with scale = max(largest |x| / 127, MIN_SCALE) in float32;
    keys and values have scales of their own.
    Source: vllm/v1/attention/ops/triton_reshape_and_cache_flash.py#L139-L236
    (_reshape_cache_per_token_head) @ v0.22.1.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    slot = tl.load(slot_mapping_ptr + token)
    if slot < 0:
        return
    place = slot * tl.num_programs(1) + head
    column = tl.arange(0, DIM_TILE)
    inside = column < HEAD_DIM
    key_at = key_ptr + token * key_stride + head * HEAD_DIM + column
    key = tl.load(key_at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(key), axis=0) / 127.0, MIN_SCALE)
    rounded = (key / scale + ROUND) - ROUND
    tl.store(key_cache_ptr + place * (HEAD_DIM + 4) + column, rounded.to(tl.int8), mask=inside)
    tl.store(key_scale_ptr + place * (HEAD_DIM // 4 + 1) + HEAD_DIM // 4, scale)
    value_at = value_ptr + token * value_stride + head * HEAD_DIM + column
    value = tl.load(value_at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(value), axis=0) / 127.0, MIN_SCALE)
    rounded = (value / scale + ROUND) - ROUND
    tl.store(value_cache_ptr + place * (HEAD_DIM + 4) + column, rounded.to(tl.int8), mask=inside)
    tl.store(value_scale_ptr + place * (HEAD_DIM // 4 + 1) + HEAD_DIM // 4, scale)
