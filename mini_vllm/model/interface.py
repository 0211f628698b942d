"""The interface between a model and the rest of the engine."""

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
    """One tensor that a layer keeps for a request; its size does not depend on the length."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class LayerSpec:
    """What one layer keeps in its cache. Layers with equal specs may share a block table.

    Args:
        kind: "full" (all tokens), "sliding_window" (the last `window` tokens), "chunked_local"
            (the tokens in the newest token's chunk of `chunk` tokens), or "mamba" (a state that
            summarises all tokens: `states`).

    Source: vllm/v1/kv_cache_interface.py#L97-L134 (KVCacheSpec) @ v0.22.1.
    """

    kind: str = "full"
    window: int = 0
    chunk: int = 0
    states: tuple[StateTensor, ...] = ()


FULL = LayerSpec()


@dataclass(frozen=True)
class KVCacheSpec:
    """The shape of a model's cache.

    An attention layer has `[planes, blocks, block_size, Hkv, width]`, a layer with a state
    `[blocks, *shape]` for each of its tensors.

    Args:
        num_layers: on this rank.
        num_kv_heads: on this rank.
        head_dim: numbers of one head's key or value.
        dtype: of the cache, which may differ from the model's.
        pad_bytes: after each head, for its scale.
        planes: 2: keys and values; 1: latents, which serve as both.
        layers: the spec of each layer; (): all layers keep all tokens.
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
    """The tensors that one pipeline stage sends to the next, `[T, H]` each.

    The last layer's output is not yet added to the residual stream, so both are sent.
    Source: vllm/sequence.py#L18-L60 (IntermediateTensors) @ v0.22.1.
    """

    hidden_states: Tensor
    residual: Tensor


class DecoderModel(Protocol):
    """The interface of a decoder for the runner, the loaders and the adapters.

    `stacked` names the projections that one matrix holds: {"qkv_proj": ["q_proj", ...]}.
    `supports` is a subset of {"tp", "pp", "lora", "quantization", "compile", "images", "states",
    "latents"}.
    """

    config: ModelArgs
    stacked: Mapping[str, Sequence[str]]
    supports: frozenset[str]

    def checkpoint_prefix(self, name: str) -> str:
        """The checkpoint's name of `name`, our parameter or module, before projections are
        split."""

    def kv_cache_spec(self) -> KVCacheSpec:
        """The cache that this rank's part of the model needs."""

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
        """Hidden states `[T, H]`, or the tensors for the next pipeline stage.

        Layer i gets `kv_caches[i]` and `metadata.of_layer(i)`.
        If `supports` allows them, `extra` may hold `inputs_embeds` `[T, H]`, `deepstack` (features
        of images that are added to the first layers) and `intermediate` (from the stage before).
        """

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Logits `[B, vocab_size]` of hidden states `[B, H]`; see `LlamaForCausalLM`."""


def can_be_recorded(model: nn.Module) -> bool:
    """Whether a step launches the same kernels for any tokens: no module denies it."""
    return all(getattr(module, "can_be_recorded", True) for module in model.modules())
