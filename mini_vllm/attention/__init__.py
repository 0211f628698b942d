"""Attention over a paged KV cache: one interface, several backends.

The cache of one layer is a single tensor `[2, num_blocks, block_size, num_kv_heads, head_dim]`:

    kv_cache[0]  keys     kv_cache[1]  values
    block 0 is the null block; slot = block_id * block_size + offset inside the block
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from mini_vllm.attention.metadata import AttentionMetadata, StateMetadata
from mini_vllm.attention.selector import AttentionSelectorConfig, get_attn_backend_cls
from mini_vllm.platforms import platform_of

__all__ = ["AttentionBackend", "AttentionMetadata", "StateMetadata", "get_backend"]


class AttentionBackend(Protocol):
    """What a model's attention layer calls, first `store`, then `forward`."""

    def store(self, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor) -> None:
        """Write `key` and `value` `[T, Hkv, D]` into the slots; a slot of -1 stores nothing."""

    def forward(
        self,
        query: Tensor,
        kv_cache: Tensor,
        metadata: AttentionMetadata,
        scale: float,
        sliding_window: int | None = None,
    ) -> Tensor:
        """Causal attention of `query` `[T, Hq, D]` over each request's own pages: `[T, Hq, D]`."""


def get_backend(
    device: torch.device | str,
    name: str | None = None,
    config: AttentionSelectorConfig | None = None,
) -> AttentionBackend:
    """The backend called `name`, or the best one for `device`.

    Raises ValueError for an unknown name, and for one that could not run there, with all reasons.
    """
    config = config or AttentionSelectorConfig()
    backend: AttentionBackend = get_attn_backend_cls(platform_of(device), name, config)()
    return backend
