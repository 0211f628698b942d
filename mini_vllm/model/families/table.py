"""What a family of decoders is made of, as data.

    a layer     norm -> mixer -> + -> norm -> feed-forward -> +        one after the other, or
                norm -> mixer and feed-forward -> +                    both of the same input
    mixer       what moves information between tokens: attention, or a state
    feed-forward  what is done to each token alone: an MLP, or experts

A family names the parts of its layers and the defaults of its `config.json`. `model/decoder.py`
builds a model of them. Nothing here needs torch, so that a config is read without it.
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
    """Where a layer has norms, and what its file calls them. None: there is none.

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
"""Of a parallel layer: the feed-forward reads what the mixer reads."""


@dataclass(frozen=True)
class QueryGrowth:
    """How much longer queries are further on in a text, so that attention to much stays sharp.

    The query at position p is multiplied by 1 + rate * log(1 + floor((p + offset) / every)).
    """

    rate: float
    every: float
    offset: int = 0


@dataclass(frozen=True)
class Parts:
    """What a decoder is built of; the defaults are Llama's.

    Args:
        norm: a kind in `decoder.NORMS`: "rms", "gemma", "layer", ...
        norms: where a layer has them.
        is_parallel: mixer and feed-forward read the same stream, and both are added to it.
        mixers: one a layer, kinds in `decoder.MIXERS`; empty: "attention" in all.
        feed_forwards: one a layer, kinds in `decoder.FEED_FORWARDS`; empty: "gated_mlp" in all.
        qk_norm: of queries and keys: None, "head" (each head by itself), "all" (all heads
            together), "head_rows" (each head by itself, with a row of weights for each), "length"
            (each head that turns, without a weight).
        norms_after_rotation: whether that norm comes after the rotation.
        rotates: one a layer, whether its heads turn with the position; empty: all do.
        turns_neighbours: a pair of features that turns lies side by side, not half a head apart.
        chunks: one a layer, how many tokens a chunk has; a token sees its own chunk only. None or
            empty: there are none.
        query_growth: of queries, in layers that do not turn, or in all if all do.
        has_sinks: a learned logit a head takes part in the softmax and has no value.
        attention_scale: what scores are multiplied by; None: head_dim ** -0.5.
        attention_softcap: scores are bent to stay within this; None: they are not.
        embedding_scale: embeddings are multiplied by it.
        rounds_embedding_scale: to the weights' dtype before that, as Gemma was trained.
        residual_scale: what a layer adds to the stream is multiplied by it.
        logit_scale: logits are multiplied by it.
        logit_softcap: logits are bent to stay within this; None: they are not.
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
        """Whether attention looks at the lengths of a step's texts before it launches anything."""
        is_plain = self.attention_softcap is None and self.query_growth is None
        return self.has_sinks or not is_plain or any(self.chunks)

    def mixer(self, index: int) -> str:
        return self.mixers[index] if self.mixers else "attention"

    def feed_forward(self, index: int) -> str:
        return self.feed_forwards[index] if self.feed_forwards else "gated_mlp"

    def turns(self, index: int) -> bool:
        """Whether the heads of layer `index` turn with the position."""
        return not self.rotates or self.rotates[index]

    def chunk(self, index: int) -> int | None:
        """How many tokens a chunk has in layer `index`; None: there are none."""
        return self.chunks[index] if self.chunks else None

    def growth(self, index: int) -> QueryGrowth | None:
        """How queries of layer `index` grow; None: they do not."""
        return None if self.rotates and self.rotates[index] else self.query_growth


ACTIVATION = one_of("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "relu2", "silu")
"""What an MLP without a gate may have between its two products."""
LLAMA = Parts()
LLAMA_STACKS: Mapping[str, Sequence[str]] = {
    "qkv_proj": ["q_proj", "k_proj", "v_proj"],
    "gate_up_proj": ["gate_proj", "up_proj"],
}


@dataclass(frozen=True)
class Family:
    """A family of decoders.

    Args:
        defaults: entries of its config class where they are not Llama's.
        parts: what it is made of, by the config; None: of what Llama is.
        args: further fields of `ModelArgs`, by the config.
        spelled: its own names of entries -> ours.
        rewrite: the config as Llama would say it, where a name alone does not do.
        rules: its own entries, or what ours may be in it.
        has_ropes_by_layer: `rope_parameters` may differ for layers with a window.
        windows: one a layer, None for the whole context; None: none has a window.
        names: pieces of our tensors' names -> the file's.
        stacked: our projections -> the file's, see `DecoderModel`.
        supports: what it goes together with, see `DecoderModel`.
        can_be_recorded: whether a step launches the same kernels whatever its tokens are.
        ignores: the beginnings of tensors' names that a file may have and decoding does not need.
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
    """Which layers turn heads with the position: all but each `no_rope_layer_interval`-th, unless
    `no_rope_layers` says it of each."""
    num_layers, every = config["num_hidden_layers"], config["no_rope_layer_interval"]
    given = config.get("no_rope_layers")  # true: the layer has RoPE, whatever the name says
    if given:
        return [bool(one) for one in given]
    return [index % every != 0 for index in range(1, num_layers + 1)]


def window_everywhere(config: Config) -> tuple[int | None, ...]:
    """The config's window, in all layers."""
    return (config.get("sliding_window"),) * config["num_hidden_layers"]


def windows_by_layer(every: int) -> Callable[[Config], tuple[int | None, ...]]:
    """A window in the layers that `layer_types` names; without it, in all but each `every`-th."""
    return partial(layer_windows, every=every)
