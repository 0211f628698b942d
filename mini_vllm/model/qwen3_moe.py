"""Qwen3-MoE: Qwen3 with experts in place of the MLP.

Source: vllm/model_executor/models/qwen3_moe.py#L137-L257 (Qwen3MoeSparseMoeBlock) @ v0.22.1.
"""

from __future__ import annotations

from torch import nn

from mini_vllm.model.config import ModelArgs
from mini_vllm.model.layers import Build
from mini_vllm.model.llama import DecoderLayer, LlamaModel
from mini_vllm.model.moe.layer import SparseMoE
from mini_vllm.model.qwen3 import Qwen3ForCausalLM


class Qwen3MoeDecoderLayer(DecoderLayer):
    def make_mlp(self, args: ModelArgs, build: Build, prefix: str) -> nn.Module:
        """Experts, or an MLP in the layers that the config names."""
        index = int(prefix.split(".")[-2])
        if args.moe is None or index in args.moe.dense_layers:
            return super().make_mlp(args, build, prefix)
        return SparseMoE(args.hidden_size, args.moe, build, prefix)


class Qwen3MoeModel(LlamaModel):
    layer = Qwen3MoeDecoderLayer


class Qwen3MoeForCausalLM(Qwen3ForCausalLM):
    decoder = Qwen3MoeModel
