"""Attention whose output is multiplied by a gate: the attention layers of Qwen3-Next and Qwen3.5.

    q_proj rows, head by head: [q | gate]      out * sigmoid(gate) -> o_proj

Source: vllm/model_executor/models/qwen3_next.py#L283-L321 (forward) @ v0.22.1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mini_vllm.attention import AttentionMetadata
from mini_vllm.model.config import ModelArgs
from mini_vllm.model.layers import Build, Linear
from mini_vllm.model.parts.attention import Attention


class GatedAttention(Attention):
    """Arguments as of every mixer, see `model/decoder.py`."""

    def __init__(self, args: ModelArgs, build: Build, index: int, prefix: str) -> None:
        super().__init__(args, build, index, prefix)
        heads, kv_heads = args.num_attention_heads, args.num_key_value_heads
        sizes = [n * args.head_dim for n in (2 * heads, kv_heads, kv_heads)]
        column = build.parallel.qkv(2 * heads, kv_heads)  # the gate's rows follow its query's
        self.qkv_proj = Linear(
            args.hidden_size, sizes, args.qkv_bias, build, column, f"{prefix}.qkv_proj"
        )

    def forward(
        self, x: Tensor, rope: tuple[Tensor, Tensor], kv_cache: Tensor, metadata: AttentionMetadata
    ) -> Tensor:
        heads = self.qkv_proj(x).view(len(x), -1, self.head_dim)
        sizes = [2 * self.num_heads, self.num_kv_heads, self.num_kv_heads]
        both, key, value = heads.split(sizes, dim=1)
        query, gate = both.reshape(len(x), -1, 2, self.head_dim).unbind(2)
        qk = self.prepare_qk(torch.cat((query, key), dim=1), rope, metadata)
        query, key = qk.split([self.num_heads, self.num_kv_heads], dim=1)
        self.backend.store(key, value, kv_cache, metadata.slot_mapping)
        out = self.backend.forward(query, kv_cache, metadata, self.scale, self.window)
        return self.o_proj((out * gate.sigmoid()).flatten(1))
