"""How the kernels of `quantized_kernels.py` are launched, and the least work they can do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mini_vllm.kernels.attention import decode_launch, work_paged_decode
from mini_vllm.kernels.launch import KernelSpec, Launch, Work, next_power_of_2, tensor_bytes
from mini_vllm.kernels.products import product_tiles

MODULE = "mini_vllm.kernels.quantized_kernels"
MIN_TOKEN_SCALE = 1e-10 / 127
MIN_HEAD_SCALE = 1e-6


# ---------------------------------------------------------------- per_token_quant_int8
def plan_per_token_quant(
    x: Tensor, output: Tensor, scale: Tensor, least: float = MIN_TOKEN_SCALE
) -> list[Launch]:
    """`x` `[T, K]` (its token stride is free) -> `output` `[T, K]` int8 and `scale` `[T, 1]`, none
    of which is below `least`."""
    size = x.shape[1]
    launch = Launch(
        "per_token_quant_int8_kernel",
        grid=(len(x),),
        args={"output_ptr": output, "scale_ptr": scale, "x_ptr": x, "x_stride": x.stride(0)},
        constexprs={
            "SIZE": size,
            "SIZE_TILE": next_power_of_2(size),
            "MIN_SCALE": least,
        },
    )
    return [launch]


def work_per_token_quant(
    x: Tensor, output: Tensor, scale: Tensor, least: float = MIN_TOKEN_SCALE
) -> Work:
    return Work(tensor_bytes(x), tensor_bytes(output, scale), flops=3 * x.numel())


PER_TOKEN_QUANT = KernelSpec(
    name="per_token_quant_int8",
    module=MODULE,
    kernels=("per_token_quant_int8_kernel",),
    plan=plan_per_token_quant,
    work=work_per_token_quant,
    outputs=("output", "scale"),
)


# ---------------------------------------------------------------- w8a8_gemm
def plan_w8a8_gemm(
    x: Tensor, weight: Tensor, x_scale: Tensor, weight_scale: Tensor, output: Tensor
) -> list[Launch]:
    """int8 `x` `[T, K]` (its token stride is free) and `weight` `[N, K]`, scales `[T, 1]` and
    `[N, 1]` -> `output` `[T, N]` of any dtype."""
    rows, columns = weight.shape
    grid, tiles = product_tiles(len(x), rows)
    launch = Launch(
        "w8a8_gemm_kernel",
        grid=grid,
        args={
            "output_ptr": output,
            "x_ptr": x,
            "weight_ptr": weight,
            "x_scale_ptr": x_scale,
            "weight_scale_ptr": weight_scale,
            "num_tokens": len(x),
            "x_stride": x.stride(0),
        },
        constexprs={"N": rows, "K": columns, **tiles},
    )
    return [launch]


def work_w8a8_gemm(
    x: Tensor, weight: Tensor, x_scale: Tensor, weight_scale: Tensor, output: Tensor
) -> Work:
    read = tensor_bytes(x, weight, x_scale, weight_scale)
    return Work(read, tensor_bytes(output), flops=2 * len(x) * weight.numel())


W8A8_GEMM = KernelSpec(
    name="w8a8_gemm",
    module=MODULE,
    kernels=("w8a8_gemm_kernel",),
    plan=plan_w8a8_gemm,
    work=work_w8a8_gemm,
    outputs=("output",),
)


# ---------------------------------------------------------------- w4a16_gemm
def plan_w4a16_gemm(
    x: Tensor, words: Tensor, scale: Tensor, zero: Tensor, output: Tensor
) -> list[Launch]:
    """`x` `[T, K]` (its token stride is free), `words` `[N, ceil(K / 8)]`, `scale` and `zero`
    `[N, G]` -> `output` `[T, N]`."""
    (num_tokens, columns), (rows, num_words) = x.shape, words.shape
    grid, tiles = product_tiles(num_tokens, rows)
    launch = Launch(
        "w4a16_gemm_kernel",
        grid=grid,
        args={
            "output_ptr": output,
            "x_ptr": x,
            "words_ptr": words,
            "scale_ptr": scale,
            "zero_ptr": zero,
            "num_tokens": num_tokens,
            "x_stride": x.stride(0),
        },
        constexprs={
            "N": rows,
            "K": columns,
            "WORDS": num_words,
            "GROUPS": scale.shape[1],
            **tiles,
        },
    )
    return [launch]


def work_w4a16_gemm(x: Tensor, words: Tensor, scale: Tensor, zero: Tensor, output: Tensor) -> Work:
    flops = 2 * len(x) * len(words) * x.shape[1]
    return Work(tensor_bytes(x, words, scale, zero), tensor_bytes(output), flops)


W4A16_GEMM = KernelSpec(
    name="w4a16_gemm",
    module=MODULE,
    kernels=("w4a16_gemm_kernel",),
    plan=plan_w4a16_gemm,
    work=work_w4a16_gemm,
    outputs=("output",),
)


# ---------------------------------------------------------------- store_kv_int8
def plan_store_kv_int8(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    least: float = MIN_HEAD_SCALE,
) -> list[Launch]:
    """`key`, `value` `[T, Hkv, D]` (only the token stride is free); caches
    `[num_blocks, block_size, Hkv, D + 4]` int8; `slot_mapping` `[T]` int64. No scale is below
    `least`."""
    head_dim = key.shape[2]
    launch = Launch(
        "store_kv_int8_kernel",
        grid=(len(slot_mapping), key.shape[1]),
        args={
            "key_ptr": key,
            "value_ptr": value,
            "key_cache_ptr": key_cache,
            "value_cache_ptr": value_cache,
            "slot_mapping_ptr": slot_mapping,
            "key_stride": key.stride(0),
            "value_stride": value.stride(0),
        },
        constexprs={
            "HEAD_DIM": head_dim,
            "DIM_TILE": next_power_of_2(head_dim),
            "MIN_SCALE": least,
        },
    )
    return [launch]


def work_store_kv_int8(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    least: float = MIN_HEAD_SCALE,
) -> Work:
    stored = int((slot_mapping >= 0).sum())
    row = key.shape[1] * key.shape[2]
    read = stored * row * (key.itemsize + value.itemsize) + tensor_bytes(slot_mapping)
    return Work(read, 2 * stored * key.shape[1] * key_cache.shape[3], flops=0)


STORE_KV_INT8 = KernelSpec(
    name="store_kv_int8",
    module=MODULE,
    kernels=("finite", "bytes_of_scale", "store_kv_int8_kernel"),
    plan=plan_store_kv_int8,
    work=work_store_kv_int8,
    updates=("key_cache", "value_cache"),
)


# ---------------------------------------------------------------- paged_decode_int8
def plan_paged_decode_int8(**problem: Any) -> list[Launch]:
    """See `decode_launch`; caches are `[num_blocks, block_size, Hkv, D + 4]` int8."""
    return [decode_launch("paged_decode_int8_kernel", **problem)]


def work_paged_decode_int8(output: Tensor, **problem: Any) -> Work:
    """See `work_paged_decode`; a page's heads are D + 4 bytes, all of which are read."""
    work = work_paged_decode(output, **problem)
    head_dim, width = output.shape[2], problem["key_cache"].shape[3]
    return replace(work, flops=work.flops * head_dim // width)


PAGED_DECODE_INT8 = KernelSpec(
    name="paged_decode_int8",
    module=MODULE,
    kernels=("load_scales", "paged_decode_int8_kernel"),
    plan=plan_paged_decode_int8,
    work=work_paged_decode_int8,
    outputs=("output",),
)

SPECS = (PER_TOKEN_QUANT, W8A8_GEMM, W4A16_GEMM, STORE_KV_INT8, PAGED_DECODE_INT8)


# ---------------------------------------------------------------- for the engine
def per_token_quant(x: Tensor) -> tuple[Tensor, Tensor]:
    """`x` `[T, K]` as int8, with a scale for each token `[T, 1]` float32."""
    output = torch.empty(x.shape, dtype=torch.int8, device=x.device)
    scale = torch.empty(len(x), 1, dtype=torch.float32, device=x.device)
    PER_TOKEN_QUANT.run(x=x, output=output, scale=scale)
    return output, scale


def w8a8_product(x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor) -> Tensor:
    """(x @ weight^T) * scales: int8 `[T, K]` and `[N, K]` -> `[T, N]` float32."""
    output = torch.empty(len(x), len(weight), dtype=torch.float32, device=x.device)
    W8A8_GEMM.run(x=x, weight=weight, x_scale=x_scale, weight_scale=weight_scale, output=output)
    return output


def w4a16_product(x: Tensor, words: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """x @ ((numbers - zero) * scale)^T, `[T, K]` -> `[T, N]` in the dtype of `x`."""
    output = torch.empty(len(x), len(words), dtype=x.dtype, device=x.device)
    W4A16_GEMM.run(x=x, words=words, scale=scale, zero=zero, output=output)
    return output
