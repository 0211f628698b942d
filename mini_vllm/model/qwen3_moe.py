"""Qwen3-MoE: Qwen3 with many small MLPs ("experts") in a layer, of which a token uses a few.

    router   scores of E experts for each token; the best k, and how much each counts
    gather   the tokens of each expert lie together      e0: t1 t4   e2: t0 t1 t3   e5: ...
    experts  one product for all tokens of an expert; an expert without tokens costs nothing
    scatter  each result, times its weight, is added to its token

A decode step of few tokens reads only the experts that they use: this is why a model of 30 billion
weights can be as fast as one of three.
Source: vllm/model_executor/models/qwen3_moe.py#L137-L257 (Qwen3MoeSparseMoeBlock) @ v0.22.1.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mini_vllm.model.config import ModelArgs
from mini_vllm.model.layers import PLAIN, Build, GatedMLP, Linear
from mini_vllm.model.llama import DecoderLayer, LlamaModel
from mini_vllm.model.qwen3 import Qwen3ForCausalLM


def choose_experts(scores: Tensor, k: int, renormalise: bool) -> tuple[Tensor, Tensor]:
    """The weights and numbers of each token's k best experts, `[T, k]` each, by `[T, E]` scores.

    Weights are probabilities over all experts, in float32; `renormalise` makes the k sum to 1.
    Source: vllm/model_executor/layers/fused_moe/router/fused_topk_router.py#L69-L120 (fused_topk)
    @ v0.22.1.
    """
    weights, experts = scores.float().softmax(dim=-1).topk(k, dim=-1)
    if renormalise:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights, experts


class SparseMoE(nn.Module):
    """Takes the place of a layer's MLP."""

    def __init__(self, args: ModelArgs, build: Build, prefix: str) -> None:
        super().__init__()
        self.k, self.renormalise = args.num_experts_per_tok, args.norm_topk_prob
        self.gate = Linear(
            args.hidden_size, args.num_experts, False, PLAIN, prefix=f"{prefix}.gate"
        )
        sizes = (args.hidden_size, args.moe_intermediate_size)
        self.experts = nn.ModuleList(
            GatedMLP(*sizes, False, build, f"{prefix}.experts.{index}", args.hidden_act)
            for index in range(args.num_experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        """`[T, H] -> [T, H]`."""
        weights, chosen = choose_experts(self.gate(x), self.k, self.renormalise)
        pairs = chosen.flatten().argsort(stable=True)  # of token and expert, by expert
        tokens = pairs // self.k
        counts = chosen.flatten().bincount(minlength=len(self.experts)).tolist()
        rows = x[tokens].split(counts)
        results = [expert(own) for expert, own in zip(self.experts, rows, strict=True) if len(own)]
        shares = weights.flatten()[pairs, None].to(x.dtype)
        return torch.zeros_like(x).index_add_(0, tokens, torch.cat(results) * shares)


class Qwen3MoeDecoderLayer(DecoderLayer):
    def make_mlp(self, args: ModelArgs, build: Build, prefix: str) -> nn.Module:
        """Experts, or an MLP in the layers that the config names."""
        index = int(prefix.split(".")[-2])
        if index in args.dense_layers:
            return super().make_mlp(args, build, prefix)
        return SparseMoE(args, build, prefix)


class Qwen3MoeModel(LlamaModel):
    layer = Qwen3MoeDecoderLayer


class Qwen3MoeForCausalLM(Qwen3ForCausalLM):
    decoder = Qwen3MoeModel
    supports = Qwen3ForCausalLM.supports - {"tp", "lora", "compile"}
    can_be_recorded = False  # which experts run is known only when it runs
