"""What the rest of the engine needs of a model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from mini_vllm.attention import AttentionMetadata
from mini_vllm.model.config import ModelArgs


@dataclass(frozen=True)
class StateTensor:
    """One tensor that a layer keeps of a request, of the same size whatever the length."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class LayerSpec:
    """What one layer remembers. Layers with equal ones may share a block table.

    Args:
        kind: "full" (every token), "sliding_window" (the last `window` tokens), "chunked_local"
            (those of the newest one's chunk of `chunk` tokens), or "mamba" (a state that stands for
            all of them: `states`).

    Source: vllm/v1/kv_cache_interface.py#L97-L134 (KVCacheSpec) @ v0.22.1.
    """

    kind: str = "full"
    window: int = 0
    chunk: int = 0
    states: tuple[StateTensor, ...] = ()


FULL = LayerSpec()


@dataclass(frozen=True)
class KVCacheSpec:
    """The shape of the cache that a model writes to.

    A layer of attention has `[planes, blocks, block_size, Hkv, width]`, one with a state
    `[blocks, *shape]` for each of its tensors.

    Args:
        num_layers: that are here.
        num_kv_heads: that are here.
        head_dim: numbers of one head's key or value.
        dtype: of the cache, which need not be the model's.
        pad_bytes: behind each head, for a scale of its own.
        planes: 2: keys and values; 1: latents, which are both.
        layers: what each layer remembers; (): everything, in all of them.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    pad_bytes: int = 0
    planes: int = 2
    layers: tuple[LayerSpec, ...] = ()

    @property
    def width(self) -> int:
        """Entries of one head, its padding included."""
        return self.head_dim + self.pad_bytes // self.dtype.itemsize

    @property
    def keeps_states(self) -> bool:
        return any(layer.kind == "mamba" for layer in self.layers)


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
    `supports` is a subset of {"tp", "pp", "lora", "quantization", "compile", "images", "states",
    "latents"}.
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
        kv_caches: Sequence[Any],
        metadata: AttentionMetadata,
        **extra: Any,
    ) -> Tensor | IntermediateTensors:
        """Hidden states `[T, H]`, or what the next pipeline stage needs.

        Layer i gets `kv_caches[i]` and `metadata.of_layer(i)`.
        `extra` may hold `inputs_embeds` `[T, H]`, `deepstack` (what an image adds to the first
        layers) and `intermediate` (what the stage before hands over), as far as `supports` says.
        """

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Logits `[B, vocab_size]` of hidden states `[B, H]`; see `LlamaForCausalLM`."""


def can_be_recorded(model: nn.Module) -> bool:
    """Whether a step launches the same kernels whatever its tokens are: each module says so."""
    return all(getattr(module, "can_be_recorded", True) for module in model.modules())
