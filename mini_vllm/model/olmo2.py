"""OLMo 2: Llama with the norms behind attention and MLP, and one over all heads of q and of k.

    Llama    x + attention(norm(x))      norms what goes in
    OLMo 2   x + norm(attention(x))      norms what comes out

Source: vllm/model_executor/models/olmo2.py#L234-L278 (Olmo2DecoderLayer) @ v0.22.1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mini_vllm.attention import AttentionMetadata
from mini_vllm.model.config import ModelArgs
from mini_vllm.model.layers import Build, RMSNorm
from mini_vllm.model.llama import DecoderLayer, LlamaAttention, LlamaForCausalLM, LlamaModel


class Olmo2Attention(LlamaAttention):
    def __init__(self, args: ModelArgs, build: Build, window: int | None, prefix: str) -> None:
        super().__init__(args, build, window, prefix)
        self.q_norm = RMSNorm(self.num_heads * self.head_dim, args.rms_norm_eps)
        self.k_norm = RMSNorm(self.num_kv_heads * self.head_dim, args.rms_norm_eps)

    def norm_qk(self, qk: Tensor) -> Tensor:
        """Normalise all queries of a token together, and all its keys."""
        query, key = qk.split([self.num_heads, self.num_kv_heads], dim=1)
        normed = (self.q_norm(query.flatten(1)), self.k_norm(key.flatten(1)))
        return torch.cat(normed, dim=1).view(qk.shape)


class Olmo2DecoderLayer(DecoderLayer):
    def __init__(
        self, args: ModelArgs, build: Build, self_attn: LlamaAttention, prefix: str
    ) -> None:
        super().__init__(args, build, self_attn, prefix)
        del self.input_layernorm  # the checkpoint has none
        self.post_feedforward_layernorm = RMSNorm(args.hidden_size, args.rms_norm_eps)

    def forward(
        self,
        x: Tensor,
        residual: Tensor | None,
        rope: tuple[Tensor, Tensor],
        kv_cache: Tensor,
        metadata: AttentionMetadata,
    ) -> tuple[Tensor, Tensor]:
        stream = x if residual is None else x + residual
        x = self.post_attention_layernorm(self.self_attn(stream, rope, kv_cache, metadata))
        stream = stream + x
        return self.post_feedforward_layernorm(self.mlp(stream)), stream


class Olmo2Model(LlamaModel):
    layer = Olmo2DecoderLayer


class Olmo2ForCausalLM(LlamaForCausalLM):
    decoder = Olmo2Model
    attention = Olmo2Attention
    supports = LlamaForCausalLM.supports - {"tp"}  # a norm over all heads needs them all
