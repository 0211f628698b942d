"""How the kernel of `kernels/qk_norm_rope_store.py` is launched, and the least work it can do."""

from __future__ import annotations

from torch import Tensor

from mini_vllm.kernels.launch import KernelSpec, Launch, Work, next_power_of_2, tensor_bytes
from mini_vllm.kernels.pointwise import warps_for

TILE = 1024
"""Features of a program: whole heads, such as 8 of 128. A program reads its token's cos and sin
once."""


def plan_qk_norm_rope_store(
    qkv: Tensor,
    query_weight: Tensor | None,
    key_weight: Tensor | None,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
) -> list[Launch]:
    """`qkv` `[T, Hq + 2 Hkv, D]` (only the token stride is free), whose queries turn in place; the
    norms' weights `[D]`, both None without a norm; `cos`, `sin` `[T, 1, R]`, contiguous; caches
    `[blocks, block_size, Hkv, D]` of any float dtype; `slot_mapping` `[T]` int64."""
    num_tokens, num_heads, head_dim = qkv.shape
    num_kv_heads, rotary_dim = key_cache.shape[2], cos.shape[-1]
    heads_tile = min(max(TILE // next_power_of_2(head_dim), 1), next_power_of_2(num_heads))
    launch = Launch(
        "qk_norm_rope_store_kernel",
        grid=(num_tokens, -(-num_heads // heads_tile)),
        args={
            "qkv_ptr": qkv,
            "query_weight_ptr": qkv if query_weight is None else query_weight,
            "key_weight_ptr": qkv if key_weight is None else key_weight,
            "cos_ptr": cos,
            "sin_ptr": sin,
            "key_cache_ptr": key_cache,
            "value_cache_ptr": value_cache,
            "slot_mapping_ptr": slot_mapping,
            "qkv_stride": qkv.stride(0),
            "eps": eps,
        },
        constexprs={
            "NUM_HEADS": num_heads - 2 * num_kv_heads,
            "NUM_KV_HEADS": num_kv_heads,
            "HEAD_DIM": head_dim,
            "ROTARY_DIM": rotary_dim,
            "HAS_NORM": query_weight is not None,
            "HEADS_TILE": heads_tile,
            "HALF_TILE": next_power_of_2(rotary_dim // 2),
            "REST_TILE": next_power_of_2(head_dim - rotary_dim),
        },
        num_warps=warps_for(heads_tile * next_power_of_2(head_dim)),
    )
    return [launch]


def work_qk_norm_rope_store(
    qkv: Tensor,
    query_weight: Tensor | None,
    key_weight: Tensor | None,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
) -> Work:
    """Queries, read and written once; keys and values of tokens that are stored; half of cos and
    sin, because both halves are the same; and the norm's weights."""
    num_tokens, num_heads, head_dim = qkv.shape
    num_kv_heads, stored = key_cache.shape[2], int((slot_mapping >= 0).sum())
    queries = num_tokens * (num_heads - 2 * num_kv_heads) * head_dim
    pages = stored * num_kv_heads * head_dim
    read = (queries + 2 * pages) * qkv.itemsize + tensor_bytes(cos, sin) // 2
    weights = [weight for weight in (query_weight, key_weight) if weight is not None]
    read += tensor_bytes(slot_mapping, *weights)
    written = queries * qkv.itemsize + pages * (key_cache.itemsize + value_cache.itemsize)
    return Work(read, written, flops=7 * (queries + pages))


QK_NORM_ROPE_STORE = KernelSpec(
    name="qk_norm_rope_store",
    module="mini_vllm.kernels.qk_norm_rope_store",
    kernels=("qk_norm_rope_store_kernel",),
    plan=plan_qk_norm_rope_store,
    work=work_qk_norm_rope_store,
    updates=("qkv", "key_cache", "value_cache"),
)

SPECS = (QK_NORM_ROPE_STORE,)
