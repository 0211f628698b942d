"""Decoder layers as one call of `cpu.cpp`, for steps of few tokens on a CPU.

A layer is a dozen operations. In a narrow model each takes a few microseconds, and the call from
Python takes as long again. So `cpu.cpp` computes all operations of all layers in one call; a wide
model gains less, but uses it, too:

    norm -> q, k, v -> rotation -> cache -> attention -> o -> + -> norm -> gate, up -> silu -> down

These are the operations of `DecoderLayer.forward`, in that order. The call is used only for layers
that do nothing else. It also adds the LoRA adapters of the four products, so a step with adapters
can use it, too.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mini_vllm.attention import AttentionMetadata
from mini_vllm.attention.cpu import CpuAttention, PagedTokens
from mini_vllm.kernels import native, unpacked
from mini_vllm.model.layers import GatedMLP, Linear, silu_mul
from mini_vllm.model.layout import WHOLE

MOST_TOKENS = 256
"""Most tokens of a step for the one call; with more, the cost of separate calls is small."""
MOST_IN_GROUPS = 1024
"""The same if all weights are in groups, and unpacking them is not faster for so many tokens. In a
build for AVX2 a prompt of 512 tokens was 1.07 (4 bits) to 1.19 times (8 bits) as fast so."""
ANY_DISTANCE = 1 << 62
"""The window of a layer that has none."""


class LayerCall:
    """One or several successive layers for `cpu.cpp`: pointers to their weights, and the check
    whether a step can use the call.

    Args:
        layers: loaded `DecoderLayer`s for which :meth:`knows` is true.
    """

    def __init__(self, *layers: Any) -> None:
        self.dtype = layers[0].input_layernorm.weight.dtype
        self.num_layers = len(layers)
        self.linears = [linear for layer in layers for linear in linears_of(layer)]
        self.kinds = {getattr(linear.matrix, "kind", None) for linear in self.linears}
        self.biases: list[Tensor] = []
        self.slots: list[Any] = []
        self.slot_structs: ctypes.Array[native.Adapters] | None = None
        self.caches: native.Caches | None = None
        self.hooks = [
            hooks
            for layer in layers
            for part in parts_of(layer)
            for hooks in (part._forward_pre_hooks, part._forward_hooks)
        ]
        if len(layers) > 1:  # the hooks of a single layer are called by its caller
            self.hooks += [
                hooks
                for layer in layers
                for hooks in (layer._forward_pre_hooks, layer._forward_hooks)
            ]
        self.structs = (native.Layer * len(layers))(*map(self._struct, layers))

    def _struct(self, layer: Any) -> native.Layer:
        attn, norms = layer.self_attn, (layer.input_layernorm, layer.post_attention_layernorm)
        return native.Layer(
            *(matrix(linear, self.biases) for linear in linears_of(layer)),
            norms[0].weight.data_ptr(),
            None if attn.qk_weight is None else attn.qk_weight.data_ptr(),
            norms[1].weight.data_ptr(),
            attn.num_heads,
            attn.num_kv_heads,
            attn.head_dim,
            attn.window or ANY_DISTANCE,
            norms[0].eps,
            attn.scale,
        )

    @staticmethod
    def knows(layer: Any) -> bool:
        """Whether `cpu.cpp` supports everything in `layer`, and this rank has the whole layer.

        A class of attention must set `is_one_call` itself; it is not inherited.
        """
        attn, mlp = layer.self_attn, layer.mlp
        return (
            vars(type(attn)).get("is_one_call", False)
            and type(attn.backend) is CpuAttention
            and attn.head_dim % native.LANES == 0
            and isinstance(mlp, GatedMLP)
            and mlp.act_mul is silu_mul
            and all(is_whole(linear) for linear in linears_of(layer))
        )

    def takes(self, x: Tensor, kv_caches: Sequence[Tensor], metadata: AttentionMetadata) -> bool:
        """Whether a step is small enough, and needs no Python code inside the layers.

        Hooks need Python code (a KV connector that works layer by layer uses them), and so do
        adapters that `cpu.cpp` does not support.
        """
        return (
            self.is_small(x.shape[0])
            and kv_caches[0].dtype in native.NAMES
            and x.dtype == self.dtype
            and x.is_contiguous()
            and all([is_known(linear.adapters, x.dtype) for linear in self.linears])
            and not any(self.hooks)
        )

    def is_small(self, num_tokens: int) -> bool:
        """Whether the one call is faster than separate calls for so many tokens."""
        if num_tokens <= MOST_TOKENS or num_tokens > MOST_IN_GROUPS:
            return num_tokens <= MOST_TOKENS
        in_groups = [kind for kind in unpacked.KINDS if kind in self.kinds]
        return len(in_groups) == len(self.kinds) and not any(
            unpacked.is_faster(kind, num_tokens, self.dtype) for kind in in_groups
        )

    def __call__(
        self,
        x: Tensor,
        residual: Tensor | None,
        rope: tuple[Tensor, Tensor],
        kv_caches: Sequence[Tensor],
        metadata: AttentionMetadata,
    ) -> tuple[Tensor, Tensor]:
        """The result of the last layer's `DecoderLayer.forward`.

        Raises IndexError for a slot or a page outside the caches.
        """
        places = places_of(rope, metadata)
        if self.caches is None or not self.caches.are(kv_caches):
            self.caches = native.Caches(kv_caches)
        added, residual = (None, x) if residual is None else (x, residual)
        out = native.decoder_layers(
            self.structs, added, residual, places, self.caches, self.adapters()
        )
        return out, residual

    def adapters(self) -> ctypes.Array[native.Adapters] | None:
        """The adapters of the four products of each layer in this step; None: there are none."""
        slots: list[Any] = [linear.adapters for linear in self.linears]
        if slots != self.slots:
            structs = (native.Adapters() if each is None else each.struct for each in slots)
            self.slots, self.slot_structs = slots, (native.Adapters * len(slots))(*structs)
        # All adapters of a model share the mapping of a step, so checking the first is enough.
        first = next((each for each in slots if each is not None), None)
        return None if first is None or first.idle else self.slot_structs


def parts_of(layer: Any) -> Iterator[nn.Module]:
    """The modules that a layer calls."""
    yield from layer.self_attn.modules()
    yield from layer.mlp.modules()
    yield from (layer.input_layernorm, layer.post_attention_layernorm)


def linears_of(layer: Any) -> tuple[Linear, ...]:
    """The four products of a layer, in the order of `native.Layer`."""
    attn, mlp = layer.self_attn, layer.mlp
    return attn.qkv_proj, attn.o_proj, mlp.gate_up_proj, mlp.down_proj


def is_known(adapters: Any, dtype: torch.dtype) -> bool:
    """Whether a product has no adapters, or adapter slots that `cpu.cpp` can read."""
    return adapters is None or getattr(adapters, "dtype", None) == dtype


def is_whole(linear: Linear) -> bool:
    """Whether this rank has a product as a whole, in a format that `cpu.cpp` supports."""
    has_form = linear.matrix is not None or linear.blocks is not None
    return linear.layout is WHOLE and has_form and linear.order is None


def matrix(linear: Linear, kept: list[Tensor]) -> native.Matrix:
    """The weight and bias of `linear` for `cpu.cpp`; tensors that must stay alive go into
    `kept`."""
    weight = linear.matrix
    if weight is None:
        assert linear.blocks is not None
        weight = native.Matrix.of_floats(linear.blocks)
    if linear.bias is None:
        return weight
    kept.append(linear.bias.float())
    return weight.with_bias(kept[-1])


def places_of(rope: tuple[Tensor, Tensor], metadata: AttentionMetadata) -> native.Places:
    """The positions and slots of a step's tokens, made for its first layer and kept for the
    others."""
    places: native.Places | None = metadata.places
    if places is None or places.rope is not rope:
        tokens = PagedTokens(metadata)
        placed = (metadata.slot_mapping, tokens.table, tokens.rows, tokens.ends)
        metadata.places = places = native.Places(rope, *placed)
    return places
