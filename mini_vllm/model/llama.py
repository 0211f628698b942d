"""The Llama family: the decoder that nearly every open model is a variation of.

    tokens -> embedding -> [ norm -> attention -> + -> norm -> MLP -> + ] x layers -> norm -> head

The batch is flat: T tokens of all requests, one after another, without padding. Only attention
knows where one request ends; it reads that from the metadata.
Source: vllm/model_executor/models/llama.py#L501-L589 (LlamaForCausalLM) @ v0.22.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from mini_vllm.attention import AttentionMetadata
from mini_vllm.attention.quantized import FORMATS
from mini_vllm.kernels import can_launch, native
from mini_vllm.model.config import ModelArgs
from mini_vllm.model.interface import FULL, IntermediateTensors, KVCacheSpec, LayerSpec
from mini_vllm.model.layers import (
    PLAIN,
    Build,
    Embedding,
    GatedMLP,
    Linear,
    RMSNorm,
    to_compute_dtype,
)
from mini_vllm.model.narrow import LayerCall
from mini_vllm.model.rope import RotaryEmbedding, apply_rope


class LlamaAttention(nn.Module):
    """Grouped-query attention over the paged cache, with one matrix for q, k and v."""

    is_one_call = True  # `narrow` and `fused_qkv` support it; a subclass must say so itself
    qk_weight: Tensor | None = None  # of a norm of each head `[Hq + Hkv, D]`
    qk_eps = 0.0  # of that norm

    def __init__(self, args: ModelArgs, build: Build, window: int | None, prefix: str) -> None:
        super().__init__()
        heads, kv_heads = args.num_attention_heads, args.num_key_value_heads
        sizes = [n * args.head_dim for n in (heads, kv_heads, kv_heads)]
        column, row = build.parallel.qkv(heads, kv_heads), build.parallel.row()
        self.qkv_proj = Linear(
            args.hidden_size, sizes, args.qkv_bias, build, column, f"{prefix}.qkv_proj"
        )
        self.o_proj = Linear(
            sizes[0], args.hidden_size, args.o_bias, build, row, f"{prefix}.o_proj"
        )
        self.head_dim = args.head_dim
        self.num_heads, self.num_kv_heads, _ = (  # that are here
            size // self.head_dim for size in self.qkv_proj.output_sizes
        )
        self.backend = build.attention()
        self.window = window
        self.scale = (args.query_pre_attn_scalar or self.head_dim) ** -0.5

    @property
    def layer_spec(self) -> LayerSpec:
        """What this layer keeps in its cache."""
        return FULL if self.window is None else LayerSpec("sliding_window", self.window)

    @property
    def cache_shape(self) -> tuple[int, int, int]:
        """Planes, heads and width of the cache `[planes, blocks, block_size, heads, width]`."""
        return 2, self.num_kv_heads, self.head_dim

    def norm_qk(self, qk: Tensor) -> Tensor:
        """The norm of queries and keys `[T, Hq + Hkv, D]` before rotation; Llama has none."""
        return qk

    def prepare_qk(
        self, qk: Tensor, rope: tuple[Tensor, Tensor], metadata: AttentionMetadata
    ) -> Tensor:
        """Norm and rotate queries and keys `[T, Hq + Hkv, D]` for attention."""
        return apply_rope(self.norm_qk(qk), *rope)

    def forward(
        self, x: Tensor, rope: tuple[Tensor, Tensor], kv_cache: Tensor, metadata: AttentionMetadata
    ) -> Tensor:
        heads = self.qkv_proj(x).view(len(x), -1, self.head_dim)
        query = self.turn_and_store(heads, rope, kv_cache, metadata)
        out = self.backend.forward(query, kv_cache, metadata, self.scale, self.window)
        return self.o_proj(out.flatten(1))

    def turn_and_store(
        self,
        heads: Tensor,
        rope: tuple[Tensor, Tensor],
        kv_cache: Tensor,
        metadata: AttentionMetadata,
    ) -> Tensor:
        """Norm and rotate the queries and keys of `heads` `[T, Hq + 2 Hkv, D]`, and store keys and
        values in their slots. Returns the queries `[T, Hq, D]`. `heads` may be overwritten."""
        if can_launch(heads):
            from mini_vllm.model import fused_qkv

            if not fused_qkv.reasons_for_three_steps(self, heads, rope):
                return fused_qkv.norm_rope_store(self, heads, rope, kv_cache, metadata)
        num_qk = self.num_heads + self.num_kv_heads
        qk, value = heads.split([num_qk, self.num_kv_heads], dim=1)
        qk = self.prepare_qk(qk, rope, metadata)
        query, key = qk.split([self.num_heads, self.num_kv_heads], dim=1)
        self.backend.store(key, value, kv_cache, metadata.slot_mapping)
        return query


class DecoderLayer(nn.Module):
    """Attention, then the MLP; each reads a normalised copy and adds to the residual stream.

    An addition and the norm after it are one operation, so that a GPU reads and writes the stream
    only once for both.
    Source: vllm/model_executor/models/llama.py#L316-L333 (LlamaDecoderLayer.forward) @ v0.22.1.
    """

    def __init__(
        self, args: ModelArgs, build: Build, self_attn: LlamaAttention, prefix: str
    ) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(args.hidden_size, args.rms_norm_eps)
        self.self_attn = self_attn
        self.post_attention_layernorm = RMSNorm(args.hidden_size, args.rms_norm_eps)
        self.mlp = self.make_mlp(args, build, f"{prefix}.mlp")

    def make_mlp(self, args: ModelArgs, build: Build, prefix: str) -> nn.Module:
        sizes = (args.hidden_size, args.intermediate_size)
        return GatedMLP(*sizes, args.mlp_bias, build, prefix, args.hidden_act)

    @cached_property
    def call(self) -> LayerCall | None:
        """This layer as one call of `cpu.cpp`, if that is possible."""
        return LayerCall(self) if LayerCall.knows(self) else None

    def forward(
        self,
        x: Tensor,
        residual: Tensor | None,
        rope: tuple[Tensor, Tensor],
        kv_cache: Tensor,
        metadata: AttentionMetadata,
    ) -> tuple[Tensor, Tensor]:
        """`x` is the output of the layer before; it is added to the stream with this layer's norm.

        For the first layer `residual` is None, and `x` is the stream.
        """
        call = self.call if native.can_run(x) else None
        if call is not None and call.takes(x, [kv_cache], metadata):
            return call(x, residual, rope, [kv_cache], metadata)
        if residual is None:
            x, residual = self.input_layernorm(x), x
        else:
            x, residual = self.input_layernorm.add(x, residual)
        x = self.self_attn(x, rope, kv_cache, metadata)
        x, residual = self.post_attention_layernorm.add(x, residual)
        return self.mlp(x), residual


class LlamaModel(nn.Module):
    """The decoder without its head, or one pipeline stage of it.

    The parts of other stages are `nn.Identity` here, so that every layer keeps its number.
    `layer` is the class of the layers.
    Source: vllm/model_executor/models/llama.py#L354-L427 (LlamaModel) @ v0.22.1.
    """

    layer: type[DecoderLayer] = DecoderLayer

    def __init__(
        self, args: ModelArgs, build: Build, attention: type[LlamaAttention], prefix: str
    ) -> None:
        super().__init__()
        parallel = build.parallel
        self.stage = stage = parallel.stage(args.num_hidden_layers)
        self.embed_tokens, self.norm = nn.Identity(), nn.Identity()
        if stage.is_first or (stage.is_last and args.tie_word_embeddings):  # whose head it is
            layout = parallel.embedding(args.vocab_size)
            self.embed_tokens = Embedding(args.vocab_size, args.hidden_size, layout)
        self.layers = nn.ModuleList()
        for index, window in enumerate(args.sliding_windows):
            name = f"{prefix}.layers.{index}"
            if index in stage:
                self_attn = attention(args, build, window, f"{name}.self_attn")
                self.layers.append(self.layer(args, build, self_attn, name))
            else:
                self.layers.append(nn.Identity())
        if stage.is_last:
            self.norm = RMSNorm(args.hidden_size, args.rms_norm_eps)
        self.rotary = RotaryEmbedding(args)

    @cached_property
    def call(self) -> LayerCall | None:
        """This stage's layers as one call of `cpu.cpp`, if that is possible for each."""
        layers = self.layers[self.stage.start : self.stage.end]
        are_known = all(
            type(layer).forward is DecoderLayer.forward and layer.call is not None
            for layer in layers
        )
        return LayerCall(*layers) if are_known and len(layers) else None

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        kv_caches: list[Tensor],
        metadata: AttentionMetadata,
        inputs_embeds: Tensor | None = None,
        deepstack: Tensor | None = None,
        intermediate: IntermediateTensors | None = None,
    ) -> Tensor | IntermediateTensors:
        if intermediate is not None:
            x, residual = intermediate.hidden_states, intermediate.residual
        else:
            x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
            x, residual = to_compute_dtype(x), None
        rope = self.rotary(positions, x.dtype)
        is_plain = deepstack is None and not metadata.groups and native.can_run(x)
        call = self.call if is_plain else None
        if call is not None and call.takes(x, kv_caches, metadata):
            x, residual = call(x, residual, rope, kv_caches, metadata)
        else:
            x, residual = self._each_layer(x, residual, rope, kv_caches, metadata, deepstack)
        if not self.stage.is_last:
            return IntermediateTensors(x, residual)
        return self.norm.add(x, residual)[0]

    def _each_layer(
        self,
        x: Tensor,
        residual: Tensor | None,
        rope: tuple[Tensor, Tensor],
        kv_caches: list[Tensor],
        metadata: AttentionMetadata,
        deepstack: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """Call this stage's layers one after another; returns the result of the last."""
        layers = islice(self.layers, self.stage.start, self.stage.end)
        for index, (layer, kv_cache) in enumerate(zip(layers, kv_caches, strict=True)):
            x, residual = layer(x, residual, rope, kv_cache, metadata.of_layer(index))
            if deepstack is not None and index < len(deepstack):
                x = x + deepstack[index]
        return x, residual


class LlamaForCausalLM(nn.Module):
    """A decoder with a language-model head. Qwen2 is the same with biases on q, k and v.

    It implements :class:`~mini_vllm.model.interface.DecoderModel`.
    """

    decoder: type[LlamaModel] = LlamaModel
    attention: type[LlamaAttention] = LlamaAttention
    stacked: Mapping[str, Sequence[str]] = {
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }
    supports = frozenset({"tp", "pp", "lora", "quantization", "compile"})
    can_be_recorded = True  # whether a step launches the same kernels for any tokens

    def __init__(self, args: ModelArgs, build: Build = PLAIN) -> None:
        super().__init__()
        self.config, self.kv_cache_dtype = args, build.kv_cache_dtype
        prefix = self.checkpoint_prefix("model.").removesuffix(".")  # files name layers so
        self.model = self.decoder(args, build, self.attention, prefix)
        self.dtype = self.cache_dtype = torch.get_default_dtype()
        """The dtypes of unquantised weights, see `weights_dtype`, and of the KV cache."""
        self.lm_head = self._make_head(build) if self.model.stage.is_last else nn.Identity()

    def _make_head(self, build: Build) -> Linear:
        tied = self.config.tie_word_embeddings
        head = Linear(
            self.config.hidden_size,
            self.config.vocab_size,
            bias=False,
            build=build.for_tied_head() if tied else build,
            layout=build.parallel.vocab(self.config.vocab_size),
            prefix="lm_head",
        )
        if tied:
            head.weight = self.model.embed_tokens.weight
        return head

    @property
    def absent(self) -> list[str]:
        """Names of the modules of other pipeline stages."""
        return [name for name, one in self.named_modules() if isinstance(one, nn.Identity)]

    def checkpoint_prefix(self, name: str) -> str:
        """The checkpoint's name of `name`, our parameter or module, before projections are
        split."""
        return name

    def kv_cache_spec(self) -> KVCacheSpec:
        stage, wanted = self.model.stage, self.kv_cache_dtype
        mixers = [layer.self_attn for layer in self.model.layers[stage.start : stage.end]]
        layers = tuple(mixer.layer_spec for mixer in mixers)
        shapes = {m.cache_shape for m in mixers if m.layer_spec.kind != "mamba"}
        if len(shapes) > 1:
            raise ValueError(
                f"the layers' caches have shapes {sorted(shapes)} (planes, heads, width); one pool "
                "holds one shape"
            )
        planes, num_kv_heads, width = shapes.pop() if shapes else (1, 1, 1)
        dtype, pad_bytes = self.cache_dtype, 0
        if wanted in FORMATS:
            dtype, pad_bytes = torch.int8, FORMATS[wanted].pad_bytes
        elif wanted != "auto":
            dtype = getattr(torch, wanted)
        shape = (len(mixers), num_kv_heads, width)
        return KVCacheSpec(*shape, dtype, pad_bytes, planes, layers)

    def embed(self, input_ids: Tensor) -> Tensor:
        """Embeddings `[T, H]` of `[T]` tokens, for a caller who replaces some of them."""
        return self.model.embed_tokens(input_ids)

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        kv_caches: list[Tensor],
        metadata: AttentionMetadata,
        **extra: Any,
    ) -> Tensor | IntermediateTensors:
        """Hidden states `[T, H]` of the flat batch; keys and values are written into `kv_caches`.

        `input_ids` and `positions` are `[T]`; `kv_caches` has one tensor for each layer of this
        stage, `[2, num_blocks, block_size, Hkv, D]`. Layers of different groups may share a tensor
        (`metadata.of_layer`). `extra` may hold `inputs_embeds` `[T, H]`, which replace the embedded
        `input_ids`, and `deepstack` `[levels, T, H]`, of which level k is added after layer k; or
        `intermediate`, the output of the stage before. Every stage except the last returns
        `IntermediateTensors`.
        """
        return self.model(input_ids, positions, kv_caches, metadata, **extra)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Logits `[B, vocab_size]` of the rows `[B, H]` that are to be sampled.

        They are float32, except on a GPU: there they keep the head's dtype, which the sampler
        reads.
        """
        logits = self.lm_head(hidden)
        return logits if can_launch(logits) else logits.float()
