"""A decoder built from the parts in its family's table.

Read `llama.py` first: it is one family, written out. Here the same layer is composed from a table,
so that another family is data and not a class:

    norm        NORMS         (size, eps) -> nn.Module with `forward(x)` and `add(x, residual)`
    mixer       MIXERS        (args, build, index, prefix) -> nn.Module with
                              `forward(x, rope, kv_cache, metadata)`, `[T, H] -> [T, H]`
    feed-forward  FEED_FORWARDS (args, build, index, prefix) -> nn.Module with `forward(x)`

`index` is the layer's number, `prefix` the name of its modules in the checkpoint. A mixer gets the
cosines and sines `[T, 1, R]` of its layer as `rope`, the cache of its layer as `kv_cache`, and the
batch metadata of its layer as `metadata`. Like `LlamaAttention`, it has the attributes `layer_spec`
(what it keeps of a request) and, unless it keeps a state, `cache_shape`; an attention mixer also
has a `backend`.

Source: vllm/model_executor/models/llama.py#L255-L335 (LlamaDecoderLayer) @ v0.22.1.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import astuple, replace

import torch
from torch import Tensor, nn

from mini_vllm.attention import AttentionMetadata
from mini_vllm.import_utils import resolve_obj_by_qualname
from mini_vllm.model.config import ModelArgs
from mini_vllm.model.families import table
from mini_vllm.model.families.names import renamed
from mini_vllm.model.families.table import LLAMA_STACKS, Family
from mini_vllm.model.layers import PLAIN, Build, Embedding, GatedMLP, Linear
from mini_vllm.model.layout import ParamSpec
from mini_vllm.model.llama import LlamaAttention, LlamaForCausalLM, LlamaModel
from mini_vllm.model.moe.layer import SparseMoE
from mini_vllm.model.parts.mlp import MLP
from mini_vllm.model.parts.norms import make_norm
from mini_vllm.model.rope import RotaryEmbedding

Ropes = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]
"""cos and sin of a step's tokens, for layers with full attention and for those with a window."""


def gated_mlp(args: ModelArgs, build: Build, index: int, prefix: str) -> nn.Module:
    """Llama's MLP with the family's activation."""
    sizes = (args.hidden_size, args.intermediate_size)
    return GatedMLP(*sizes, args.mlp_bias, build, prefix, args.hidden_act)


Part = Callable[[ModelArgs, Build, int, str], nn.Module]


def mixture(args: ModelArgs, build: Build, index: int, prefix: str) -> nn.Module:
    """A mixture of experts, described by `args.moe`."""
    assert args.moe is not None
    return SparseMoE(args.hidden_size, args.moe, build, prefix)


def nothing(args: ModelArgs, build: Build, index: int, prefix: str) -> nn.Module:
    """No feed-forward part, for layers that have only a mixer."""
    return nn.Identity()


MIXERS = {
    "attention": "parts.attention:Attention",
    "gated_attention": "mixers.gated_attention:GatedAttention",
    "gated_delta": "mixers.gated_delta_net:GatedDeltaNet",
    "gated_delta_by_key_head": "mixers.gated_delta_net:GatedDeltaNetByKeyHead",
    "mamba2": "mixers.mamba2_mixer:Mamba2Mixer",
    "granite_mamba2": "mixers.mamba2_mixer:GraniteMamba2Mixer",
    "latent": "mixers.latent_attention:LatentAttention",
}
"""The module and class of each mixer, imported when a model has it."""
FEED_FORWARDS: dict[str, Part] = {
    "gated_mlp": gated_mlp,
    "mlp": MLP,
    "moe": mixture,
    "none": nothing,
}


class ComposedLayer(nn.Module):
    """One layer, composed of the parts in `args.parts`.

    Args:
        index: which layer of the model it is.
        prefix: its name in the checkpoint.
    """

    def __init__(self, args: ModelArgs, build: Build, index: int, prefix: str) -> None:
        super().__init__()
        self.parts = parts = args.parts
        self.turns_locally = args.sliding_windows[index] is not None
        make: Part = resolve_obj_by_qualname(f"mini_vllm.model.{MIXERS[parts.mixer(index)]}")
        self.self_attn = make(args, build, index, f"{prefix}.self_attn")
        self.mlp = FEED_FORWARDS[parts.feed_forward(index)](args, build, index, f"{prefix}.mlp")
        for name in astuple(parts.norms):
            if name is not None:
                setattr(self, name, make_norm(parts.norm, args.hidden_size, args.rms_norm_eps))

    def norm(self, name: str | None, x: Tensor) -> Tensor:
        """`x` through the norm called `name`, or unchanged if there is none."""
        if name is None:
            return x
        y: Tensor = getattr(self, name)(x)
        return y

    def forward(
        self,
        x: Tensor,
        residual: Tensor | None,
        rope: Ropes,
        kv_cache: Tensor,
        metadata: AttentionMetadata,
    ) -> tuple[Tensor, Tensor]:
        """`x` is the output of the layer before, not yet added to the residual stream; see
        `DecoderLayer.forward`."""
        norms, scale = self.parts.norms, self.parts.residual_scale
        x, stream = self._add(norms.before_mixer, x, residual)
        mixed = self.self_attn(x, rope[self.turns_locally], kv_cache, metadata)
        mixed = scaled(self.norm(norms.after_mixer, mixed), scale)
        if isinstance(self.mlp, nn.Identity):
            return mixed, stream
        if self.parts.is_parallel:
            x = self.norm(norms.before_mlp, stream) if norms.before_mlp else x
            return mixed + scaled(self.norm(norms.after_mlp, self.mlp(x)), scale), stream
        x, stream = self._add(norms.before_mlp, mixed, stream)
        return scaled(self.norm(norms.after_mlp, self.mlp(x)), scale), stream

    def _add(self, name: str | None, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """Add `x` to the stream. Returns the norm of the sum (the sum if there is no norm), and the
        sum."""
        if residual is None:
            return self.norm(name, x), x
        if name is None:
            residual = residual + x
            return residual, residual
        both: tuple[Tensor, Tensor] = getattr(self, name).add(x, residual)
        return both


def scaled(x: Tensor, scale: float) -> Tensor:
    return x if scale == 1.0 else x * scale


class ScaledEmbedding(Embedding):
    """Embeddings multiplied by `embedding_scale` of the family's table."""

    def __init__(self, args: ModelArgs, build: Build) -> None:
        layout = build.parallel.embedding(args.vocab_size)
        super().__init__(args.vocab_size, args.hidden_size, layout)
        self.scale = args.parts.embedding_scale
        if args.parts.rounds_embedding_scale:
            self.scale = torch.tensor(self.scale, device="cpu", dtype=self.weight.dtype).item()

    def forward(self, input_ids: Tensor) -> Tensor:
        return scaled(super().forward(input_ids), self.scale)


class Rotations(nn.Module):
    """cos and sin of a step, for layers with full attention and for those with a window."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.whole = RotaryEmbedding(args)
        local = args.local_rope_parameters
        self.local = (
            None if local is None else RotaryEmbedding(replace(args, rope_parameters=local))
        )

    def forward(self, positions: Tensor, dtype: torch.dtype) -> Ropes:
        whole = self.whole(positions, dtype)
        return whole, whole if self.local is None else self.local(positions, dtype)


class ComposedModel(LlamaModel):
    """The decoder without its head, with the layers that its family's table describes."""

    layer = ComposedLayer  # type: ignore[assignment]  # it is not a subclass of Llama's layer

    def __init__(
        self, args: ModelArgs, build: Build, attention: type[LlamaAttention], prefix: str
    ) -> None:
        nn.Module.__init__(self)
        self.stage = stage = build.parallel.stage(args.num_hidden_layers)
        self.embed_tokens, self.norm = nn.Identity(), nn.Identity()
        if stage.is_first or (stage.is_last and args.tie_word_embeddings):
            self.embed_tokens = ScaledEmbedding(args, build)
        self.layers = nn.ModuleList(
            ComposedLayer(args, build, index, f"{prefix}.layers.{index}")
            if index in stage
            else nn.Identity()
            for index in range(args.num_hidden_layers)
        )
        if stage.is_last:
            self.norm = make_norm(args.parts.norm, args.hidden_size, args.rms_norm_eps)
        self.rotary = Rotations(args)


class ComposedForCausalLM(LlamaForCausalLM):
    """A composed decoder with a language-model head; there is one subclass for each table."""

    family = Family()
    decoder = ComposedModel

    def __init__(self, args: ModelArgs, build: Build = PLAIN) -> None:
        super().__init__(args, build)
        if args.parts.asks_for_lengths:
            self.can_be_recorded = False

    def _make_head(self, build: Build) -> Linear:
        head = super()._make_head(build)
        if self.config.parts.has_head_bias:
            head.bias = nn.Parameter(torch.empty(head.output_sizes[0]))
            head.bias.spec = ParamSpec(out_dim=0)
        return head

    def checkpoint_prefix(self, name: str) -> str:
        return renamed(name, self.family.names)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """As `LlamaForCausalLM.compute_logits`, scaled and capped as the table says."""
        parts = self.config.parts
        logits = super().compute_logits(hidden)
        if parts.logit_scale == 1.0 and parts.logit_softcap is None:
            return logits
        logits = scaled(logits.float(), parts.logit_scale)
        if parts.logit_softcap is None:
            return logits
        return parts.logit_softcap * torch.tanh(logits / parts.logit_softcap)


@functools.cache
def composed(architecture: str) -> type[LlamaForCausalLM]:
    """The class of a family that is a table; without parts in the table, Llama's or a subclass."""
    family = table(architecture)
    is_llama = family.parts is None and not family.names
    if is_llama and family.stacked == LLAMA_STACKS:
        return LlamaForCausalLM
    return type(
        architecture,
        (LlamaForCausalLM if is_llama else ComposedForCausalLM,),
        {
            "family": family,
            "stacked": family.stacked,
            "supports": family.supports,
            "can_be_recorded": family.can_be_recorded,
            "__doc__": f"{architecture}, of the parts of its table.",
        },
    )
