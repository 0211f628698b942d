"""What the rest of the engine asks of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from mini_vllm.attention import AttentionMetadata
from mini_vllm.model.config import ModelArgs


@dataclass(frozen=True)
class KVCacheSpec:
    """The shape of the cache that a model writes to: `[2, blocks, block_size, Hkv, width]` a layer.

    Args:
        num_layers: that are here.
        num_kv_heads: that are here.
        head_dim: numbers of one head's key or value.
        dtype: of the cache, which need not be the model's.
        pad_bytes: behind each head, for a scale of its own.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    pad_bytes: int = 0

    @property
    def width(self) -> int:
        """Entries of one head, its padding included."""
        return self.head_dim + self.pad_bytes // self.dtype.itemsize


@dataclass
class IntermediateTensors:
    """What one pipeline stage hands to the next, `[T, H]` each.

    The residual stream is kept apart from the last layer's branch, so both travel.
    Source: vllm/sequence.py#L18-L60 (IntermediateTensors) @ v0.22.1.
    """

    hidden_states: Tensor
    residual: Tensor


class DecoderModel(Protocol):
    """A decoder as the runner, the loaders and the adapters see it.

    `stacked` names the projections that one matrix holds: {"qkv_proj": ["q_proj", ...]}.
    `supports` is a subset of {"tp", "pp", "lora", "quantization", "compile", "images"}.
    """

    config: ModelArgs
    stacked: Mapping[str, Sequence[str]]
    supports: frozenset[str]

    def checkpoint_prefix(self, name: str) -> str:
        """`name`, a parameter or module of ours, with what a checkpoint writes before it."""

    def kv_cache_spec(self) -> KVCacheSpec:
        """The cache that this model (this rank's part of it) needs."""

    def embed(self, input_ids: Tensor) -> Tensor:
        """Embeddings `[T, H]` of `[T]` tokens."""

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        kv_caches: list[Tensor],
        metadata: AttentionMetadata,
        **extra: Any,
    ) -> Tensor | IntermediateTensors:
        """Hidden states `[T, H]`, or what the next pipeline stage needs.

        `extra` may hold `inputs_embeds` `[T, H]`, `deepstack` (what an image adds to the first
        layers) and `intermediate` (what the stage before hands over), as far as `supports` says.
        """

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Logits `[B, vocab_size]` in float32 of hidden states `[B, H]`."""
