"""Qwen3: Llama with a norm over each head's query and key (QK-norm) and a free head size.

Source: vllm/model_executor/models/qwen3.py (Qwen3ForCausalLM) @ v0.22.1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mini_vllm.attention import AttentionBackend
from mini_vllm.model.config import ModelArgs
from mini_vllm.model.layers import RMSNorm
from mini_vllm.model.llama import LlamaAttention, LlamaForCausalLM


class Qwen3Attention(LlamaAttention):
    def __init__(self, args: ModelArgs, backend: AttentionBackend, window: int | None) -> None:
        super().__init__(args, backend, window)
        self.q_norm = RMSNorm(self.head_dim, args.rms_norm_eps)
        self.k_norm = RMSNorm(self.head_dim, args.rms_norm_eps)

    def norm_qk(self, qk: Tensor) -> Tensor:
        """Normalise each head on its own; queries and keys have different weights."""
        query, key = qk[:, : self.num_heads], qk[:, self.num_heads :]
        return torch.cat((self.q_norm(query), self.k_norm(key)), dim=1)


class Qwen3ForCausalLM(LlamaForCausalLM):
    attention = Qwen3Attention
