"""How many requests fit: from the shape of a model's cache to requests of some length.

::

    spec    bytes a token  ─┐
                            ├─ bytes a block ─┐
            block_size     ─┘                 ├─ blocks ─┐
            memory         ───────────────────┘          ├─ requests
            tokens a request, tokens they share ─────────┘

Source: vllm/v1/core/kv_cache_utils.py#L877-L895 (get_max_concurrency_for_kv_cache_config) @ v0.22.1
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mini_vllm.model.interface import KVCacheSpec


def bytes_per_token(spec: KVCacheSpec) -> int:
    """Bytes that one token takes in the KV cache, over all layers.

    In each layer a token has ``planes`` vectors for each of ``num_kv_heads``: a key and a value, or
    one latent, which is both. A vector has ``width`` entries of ``dtype``; ``width`` is
    ``head_dim`` and what a quantised cache puts behind it.

    A layer of ``spec.layers`` whose kind is "mamba" keeps a state of one size whatever the length:
    it takes nothing a token. With ``layers`` empty all layers keep keys and values.

    Source: vllm/v1/kv_cache_interface.py#L167-L184 (AttentionSpec.real_page_size_bytes) @ v0.22.1
    """
    # TODO 01.6
    raise NotImplementedError(
        "TODO 01.6: write bytes_per_token in labs/01-one-request/capacity.py"
        " (phase 01, 02-mini-build.md#task-6)"
    )


def num_blocks_in(memory: int, bytes_per_block: int) -> int:
    """Whole blocks that so many bytes hold; 0 if the weights have left less than nothing.

    Source: vllm/v1/core/kv_cache_utils.py#L935-L952 (get_num_blocks) @ v0.22.1
    """
    # TODO 01.6
    raise NotImplementedError(
        "TODO 01.6: write num_blocks_in in labs/01-one-request/capacity.py"
        " (phase 01, 02-mini-build.md#task-6)"
    )


def requests_that_fit(
    num_blocks: int, block_size: int, num_tokens: int, num_shared_tokens: int = 0
) -> int:
    """How many requests of ``num_tokens`` run side by side before one is preempted.

    One of the ``num_blocks`` is the null block, which holds no tokens. A request begins a block for
    every ``block_size`` tokens, and has its last one to itself even if it is not full.

    All of them may begin with the same ``num_shared_tokens``, such as a system prompt. The prefix
    cache keeps full blocks of these once for all. The last token of a request is always computed,
    so the block that it is in is never shared.

    Args:
        num_tokens: prompt and output of a request; at least 1.
        num_shared_tokens: at most ``num_tokens``.

    Source: vllm/v1/core/kv_cache_utils.py#L877-L895 (get_max_concurrency_for_kv_cache_config)
    @ v0.22.1. Upstream counts the null block, no prefix, and a share of a request.
    """
    # TODO 01.6
    raise NotImplementedError(
        "TODO 01.6: write requests_that_fit in labs/01-one-request/capacity.py"
        " (phase 01, 02-mini-build.md#task-6)"
    )
