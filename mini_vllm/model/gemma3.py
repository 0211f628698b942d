"""Gemma 3 (text): four norms a layer, two rotations, a window in five layers of six.

    x + norm(attention(norm(x)))     then the same with the MLP
    norm(x) = x / rms(x) * (1 + weight), in float32 to its end
    layers with a window turn by angles of their own; embeddings are scaled by sqrt(hidden_size)

Source: vllm/model_executor/models/gemma3.py#L228-L293 (Gemma3DecoderLayer) @ v0.22.1.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from mini_vllm.attention import AttentionMetadata
from mini_vllm.model.config import ModelArgs
from mini_vllm.model.layers import Build, Embedding, RMSNorm
from mini_vllm.model.llama import DecoderLayer, LlamaAttention, LlamaForCausalLM, LlamaModel
from mini_vllm.model.rope import RotaryEmbedding

BothRotations = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]
"""cos and sin for layers that see everything, and for those with a window."""


def gemma_norm(x: Tensor, scale: Tensor, eps: float) -> Tensor:
    """x / rms(x) * scale over the last dimension; `scale` is float32 and has its 1 already.

    Source: vllm/model_executor/layers/layernorm.py#L131-L178 (GemmaRMSNorm) @ v0.22.1.
    """
    wide = x.float()
    return (wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt() * scale).to(x.dtype)


class GemmaRMSNorm(RMSNorm):
    """The checkpoint's weight is how far the factor is from 1."""

    def process_weights_after_loading(self) -> None:
        self.weight.data = self.weight.float() + 1

    def forward(self, x: Tensor) -> Tensor:
        return gemma_norm(x, self.weight, self.eps)

    def add(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        residual = residual + x
        return self(residual), residual


class GemmaEmbedding(Embedding):
    def forward(self, input_ids: Tensor) -> Tensor:
        scale = torch.tensor(self.weight.shape[1] ** 0.5, dtype=self.weight.dtype)
        return super().forward(input_ids) * scale  # rounded as the model was trained


class GemmaRotations(nn.Module):
    """Both rotations, computed once a step."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.whole = RotaryEmbedding(args)
        local = args.local_rope_parameters or args.rope_parameters
        self.local = RotaryEmbedding(replace(args, rope_parameters=local))

    def forward(self, positions: Tensor, dtype: torch.dtype) -> BothRotations:
        return self.whole(positions, dtype), self.local(positions, dtype)


class Gemma3Attention(LlamaAttention):
    def __init__(self, args: ModelArgs, build: Build, window: int | None, prefix: str) -> None:
        super().__init__(args, build, window, prefix)
        self.q_norm = GemmaRMSNorm(self.head_dim, args.rms_norm_eps)
        self.k_norm = GemmaRMSNorm(self.head_dim, args.rms_norm_eps)

    def process_weights_after_loading(self) -> None:
        """One row a head, so that one norm serves q and k."""
        rows = [self.q_norm.weight] * self.num_heads + [self.k_norm.weight] * self.num_kv_heads
        self.qk_scale = torch.stack(rows).float() + 1

    def norm_qk(self, qk: Tensor) -> Tensor:
        return gemma_norm(qk, self.qk_scale, self.q_norm.eps)

    def forward(
        self, x: Tensor, rope: BothRotations, kv_cache: Tensor, metadata: AttentionMetadata
    ) -> Tensor:
        return super().forward(x, rope[self.window is not None], kv_cache, metadata)


class Gemma3DecoderLayer(DecoderLayer):
    def __init__(
        self, args: ModelArgs, build: Build, self_attn: LlamaAttention, prefix: str
    ) -> None:
        super().__init__(args, build, self_attn, prefix)
        for name in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            setattr(self, f"{name}_layernorm", GemmaRMSNorm(args.hidden_size, args.rms_norm_eps))

    def forward(
        self,
        x: Tensor,
        residual: Tensor | None,
        rope: BothRotations,
        kv_cache: Tensor,
        metadata: AttentionMetadata,
    ) -> tuple[Tensor, Tensor]:
        if residual is None:
            x, residual = self.input_layernorm(x), x
        else:
            x, residual = self.input_layernorm.add(x, residual)
        x = self.post_attention_layernorm(self.self_attn(x, rope, kv_cache, metadata))
        x, residual = self.pre_feedforward_layernorm.add(x, residual)
        return self.post_feedforward_layernorm(self.mlp(x)), residual


class Gemma3Model(LlamaModel):
    layer = Gemma3DecoderLayer
    embedding = GemmaEmbedding
    rotation = GemmaRotations
    final_norm = GemmaRMSNorm


class Gemma3ForCausalLM(LlamaForCausalLM):
    decoder = Gemma3Model
    attention = Gemma3Attention
