"""Qwen3: Llama with a norm over each head's query and key (QK-norm) and a free head size.

Source: vllm/model_executor/models/qwen3.py#L261-L340 (Qwen3ForCausalLM) @ v0.22.1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mini_vllm.model.config import ModelArgs
from mini_vllm.model.layers import Build, RMSNorm, rms_norm, to_compute_dtype
from mini_vllm.model.llama import LlamaAttention, LlamaForCausalLM


class Qwen3Attention(LlamaAttention):
    is_one_call = True

    def __init__(self, args: ModelArgs, build: Build, window: int | None, prefix: str) -> None:
        super().__init__(args, build, window, prefix)
        self.qk_eps = args.rms_norm_eps
        self.q_norm = RMSNorm(self.head_dim, args.rms_norm_eps)
        self.k_norm = RMSNorm(self.head_dim, args.rms_norm_eps)

    def process_weights_after_loading(self) -> None:
        """Join the weights of both norms, one row per head, so that one call norms q and k."""
        rows = [self.q_norm.weight] * self.num_heads + [self.k_norm.weight] * self.num_kv_heads
        self.qk_weight = to_compute_dtype(torch.stack(rows))

    def norm_qk(self, qk: Tensor) -> Tensor:
        """Norm each head by itself; queries and keys have different weights."""
        return rms_norm(qk, self.qk_weight, self.qk_eps)


class Qwen3ForCausalLM(LlamaForCausalLM):
    attention = Qwen3Attention
