"""Attention over a paged KV cache: one interface, several backends.

The cache of one layer is a single tensor `[2, num_blocks, block_size, num_kv_heads, head_dim]`:

    kv_cache[0]  keys     kv_cache[1]  values
    block 0 is the null block; slot = block_id * block_size + offset inside the block
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from mini_vllm.attention.metadata import AttentionMetadata
from mini_vllm.kernels import INTERPRETED

__all__ = ["AttentionBackend", "AttentionMetadata", "get_backend"]


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


def get_backend(device: torch.device | str, name: str | None = None) -> AttentionBackend:
    """The backend called `name`, or the best one for `device`.

    Raises ValueError for an unknown name, and for kernels that could not run there.
    """
    from mini_vllm.attention.cpu import CpuAttention
    from mini_vllm.attention.reference import ReferenceAttention
    from mini_vllm.attention.triton_backend import TritonAttention

    backends: dict[str, type[AttentionBackend]] = {
        "reference": ReferenceAttention,
        "cpu": CpuAttention,
        "triton": TritonAttention,
    }
    kernels_run = INTERPRETED or torch.device(device).type == "cuda"
    if name is None:
        name = "triton" if kernels_run else "cpu"
    if name == "triton" and not kernels_run:
        raise ValueError(
            f"attention backend 'triton' cannot run on {device}; use a GPU, or set "
            "TRITON_INTERPRET=1 to let Triton interpret its kernels, slowly"
        )
    if name not in backends:
        raise ValueError(f"attention backend {name!r} is unknown; choose one of {list(backends)}")
    return backends[name]()
