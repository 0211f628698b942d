"""Norm, rotation and cache store of an attention layer in one kernel launch, where it is possible.

In separate steps a layer of Qwen3 launches three kernels between its first product and attention,
and queries and keys are read and written twice instead of once.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from mini_vllm.attention import AttentionMetadata
from mini_vllm.attention.triton_backend import TritonAttention
from mini_vllm.kernels.qkv import QK_NORM_ROPE_STORE


def reasons_for_three_steps(attn: Any, heads: Tensor, rope: tuple[Tensor, Tensor]) -> list[str]:
    """All reasons why the attention layer `attn` must norm, rotate and store in three steps; if
    there are none, the fused kernel is used.

    Args:
        heads: `[T, Hq + 2 Hkv, D]`, on which kernels can be launched.
        rope: cos and sin of the step, `[T, 1, R]` each.
    """
    reasons = []
    if not vars(type(attn)).get("is_one_call", False):
        reasons.append(f"{type(attn).__name__} does not say that it norms and turns as Qwen3 does")
    if type(attn.backend) is not TritonAttention:
        reasons.append(f"{type(attn.backend).__name__} stores keys and values in its own way")
    if heads.stride()[1:] != (heads.shape[2], 1):
        reasons.append(f"heads have strides {heads.stride()}; those of a token must be contiguous")
    tensors = [*rope, *(weight for weight in weights_of(attn) if weight is not None)]
    if others := {tensor.dtype for tensor in tensors} - {heads.dtype}:
        reasons.append(f"angles or weights are {', '.join(map(str, others))}, not {heads.dtype}")
    return reasons


def weights_of(attn: Any) -> tuple[Tensor | None, Tensor | None]:
    """The weights `[D]` of the norms of queries and of keys; both None without such norms."""
    weight: Tensor | None = attn.qk_weight
    return (None, None) if weight is None else (weight[0], weight[attn.num_heads])


def norm_rope_store(
    attn: Any,
    heads: Tensor,
    rope: tuple[Tensor, Tensor],
    kv_cache: Tensor,
    metadata: AttentionMetadata,
) -> Tensor:
    """Norm and rotate queries and keys in place, and store keys and values in their slots of
    `kv_cache` `[2, blocks, block_size, Hkv, D]`. Returns the queries `[T, Hq, D]`, a view of
    `heads`.

    Numbers are rounded where the three steps round them. Without a norm the results are equal; with
    one, squares may be summed in another order.
    """
    query_weight, key_weight = weights_of(attn)
    keys, values = kv_cache.unbind()
    QK_NORM_ROPE_STORE.run(
        qkv=heads, query_weight=query_weight, key_weight=key_weight, eps=attn.qk_eps, cos=rope[0],
        sin=rope[1], key_cache=keys, value_cache=values, slot_mapping=metadata.slot_mapping,
    )  # fmt: skip
    return heads[:, : attn.num_heads]
