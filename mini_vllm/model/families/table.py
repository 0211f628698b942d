"""A family of decoders, described as data.

    a layer     norm -> mixer -> + -> norm -> feed-forward -> +        one after the other, or
                norm -> mixer and feed-forward -> +                    both with the same input
    mixer       moves information between tokens: attention, or a state
    feed-forward  computes each token alone: an MLP, or experts

A family names the parts of its layers and the defaults of its `config.json`. `model/decoder.py`
builds the model. Nothing here imports torch, so that a config can be read without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mini_vllm.model.config_rules import Rule, one_of
from mini_vllm.model.families.layer_kinds import layer_windows

Config = Mapping[str, Any]
"""The entries of a `config.json`, its family's defaults among them."""


@dataclass(frozen=True)
class Norms:
    """The names of a layer's norms in its file, by their place. None: there is no norm there.

    before_mixer -> mixer -> after_mixer -> +    before_mlp -> feed-forward -> after_mlp -> +
    """

    before_mixer: str | None = "input_layernorm"
    after_mixer: str | None = None
    before_mlp: str | None = "post_attention_layernorm"
    after_mlp: str | None = None


PRE_NORM = Norms()
POST_NORM = Norms(None, "post_attention_layernorm", None, "post_feedforward_layernorm")
SANDWICH = Norms(
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)
ONE_NORM = Norms(before_mlp=None)
"""For a parallel layer: the feed-forward part reads the mixer's input."""


@dataclass(frozen=True)
class QueryGrowth:
    """How queries grow with the position, so that attention stays sharp over long texts.

    The query at position p is multiplied by 1 + rate * log(1 + floor((p + offset) / every)).
    """

    rate: float
    every: float
    offset: int = 0


@dataclass(frozen=True)
class Parts:
    """The parts of a decoder; the defaults are Llama's. Sequences have one entry per layer.

    Args:
        norm: a kind in `parts.norms.NORMS`: "rms", "gemma", "layer", ...
        norms: where a layer has them.
        is_parallel: mixer and feed-forward read the same stream, and both are added to it.
        mixers: kinds in `decoder.MIXERS`; empty: "attention" in all layers.
        feed_forwards: kinds in `decoder.FEED_FORWARDS`; empty: "gated_mlp" in all layers.
        qk_norm: the norm of queries and keys: None, "head" (each head by itself), "all" (all heads
            together), "head_rows" (each head by itself, with its own row of weights), "length"
            (each head by itself, without weights, in layers with rotation).
        norms_after_rotation: whether that norm comes after the rotation.
        rotates: whether the layer's heads are rotated; empty: all are.
        turns_neighbours: rotated pairs are neighbouring features, not half a head apart.
        chunks: tokens per chunk, where a token attends to its own chunk only. None or empty: no
            chunks.
        query_growth: of queries in layers without rotation, or in all layers if all rotate.
        has_sinks: a learned logit per head is part of the softmax and has no value.
        attention_scale: factor of the scores; None: head_dim ** -0.5.
        attention_softcap: scores are capped softly at this value; None: not at all.
        embedding_scale: factor of the embeddings.
        rounds_embedding_scale: round that factor to the weights' dtype first, as Gemma was trained.
        residual_scale: factor of each layer's output before it is added to the stream.
        logit_scale: factor of the logits.
        logit_softcap: logits are capped softly at this value; None: not at all.
        has_head_bias: whether the language-model head has a bias.
    """

    norm: str = "rms"
    norms: Norms = PRE_NORM
    is_parallel: bool = False
    mixers: Sequence[str] = ()
    feed_forwards: Sequence[str] = ()
    qk_norm: str | None = None
    norms_after_rotation: bool = False
    rotates: Sequence[bool] = ()
    turns_neighbours: bool = False
    chunks: Sequence[int | None] = ()
    query_growth: QueryGrowth | None = None
    has_sinks: bool = False
    attention_scale: float | None = None
    attention_softcap: float | None = None
    embedding_scale: float = 1.0
    rounds_embedding_scale: bool = False
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float | None = None
    has_head_bias: bool = False

    @property
    def asks_for_lengths(self) -> bool:
        """Whether attention reads the lengths of a step on the host before it launches kernels."""
        is_plain = self.attention_softcap is None and self.query_growth is None
        return self.has_sinks or not is_plain or any(self.chunks)

    def mixer(self, index: int) -> str:
        return self.mixers[index] if self.mixers else "attention"

    def feed_forward(self, index: int) -> str:
        return self.feed_forwards[index] if self.feed_forwards else "gated_mlp"

    def turns(self, index: int) -> bool:
        """Whether the heads of layer `index` are rotated."""
        return not self.rotates or self.rotates[index]

    def chunk(self, index: int) -> int | None:
        """Tokens per chunk in layer `index`; None: no chunks."""
        return self.chunks[index] if self.chunks else None

    def growth(self, index: int) -> QueryGrowth | None:
        """How queries of layer `index` grow; None: they do not."""
        return None if self.rotates and self.rotates[index] else self.query_growth


ACTIVATION = one_of("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "relu2", "silu")
"""The activations of an MLP without a gate."""
LLAMA = Parts()
LLAMA_STACKS: Mapping[str, Sequence[str]] = {
    "qkv_proj": ["q_proj", "k_proj", "v_proj"],
    "gate_up_proj": ["gate_proj", "up_proj"],
}


@dataclass(frozen=True)
class Family:
    """A family of decoders.

    Args:
        defaults: entries of its config class that differ from Llama's.
        parts: makes the parts from the config; None: Llama's parts.
        args: makes further fields of `ModelArgs` from the config.
        spelled: its own names of entries -> ours.
        rewrite: changes the config to Llama's form, where other names are not enough.
        rules: rules of its own entries, or other rules for common entries.
        has_ropes_by_layer: `rope_parameters` may differ for layers with a window.
        windows: makes the window of each layer, None for the whole context; None: no windows.
        names: pieces of our tensors' names -> the file's.
        stacked: our projections -> the file's, see `DecoderModel`.
        supports: the features that work with it, see `DecoderModel`.
        can_be_recorded: whether a step launches the same kernels for any tokens.
        ignores: prefixes of tensors in the file that decoding does not need.
    """

    defaults: Mapping[str, Any] = field(default_factory=dict)
    parts: Callable[[Config], Parts] | None = None
    args: Callable[[Config], dict[str, Any]] | None = None
    spelled: Mapping[str, str] = field(default_factory=dict)
    rewrite: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    rules: Mapping[str, Rule] = field(default_factory=dict)
    has_ropes_by_layer: bool = False
    windows: Callable[[Config], tuple[int | None, ...]] | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    stacked: Mapping[str, Sequence[str]] = field(default_factory=lambda: LLAMA_STACKS)
    supports: frozenset[str] = frozenset({"tp", "pp", "lora", "quantization"})
    can_be_recorded: bool = True
    ignores: Sequence[str] = ()


def rotates(config: Config) -> list[bool]:
    """Which layers have a rotation: all but each `no_rope_layer_interval`-th, or as the list
    `no_rope_layers` says."""
    num_layers, every = config["num_hidden_layers"], config["no_rope_layer_interval"]
    given = config.get("no_rope_layers")  # despite the name, true means that a layer has RoPE
    if given:
        return [bool(one) for one in given]
    return [index % every != 0 for index in range(1, num_layers + 1)]


def window_everywhere(config: Config) -> tuple[int | None, ...]:
    """The config's window, in all layers."""
    return (config.get("sliding_window"),) * config["num_hidden_layers"]


def windows_by_pattern(every: int) -> Callable[[Config], tuple[int | None, ...]]:
    """As `windows_by_layer`, with the config's `sliding_window_pattern` in place of `every`."""
    return lambda config: layer_windows(config, config.get("sliding_window_pattern") or every)


def windows_by_layer(every: int) -> Callable[[Config], tuple[int | None, ...]]:
    """A window in the layers that `layer_types` names; without it, in all but each `every`-th."""
    return partial(layer_windows, every=every)
