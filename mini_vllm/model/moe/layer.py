"""A mixture of experts in the place of a layer's MLP: router, experts, shared experts.

        x ─┬─► router ─► weights, ids [T, k] ─┐
           ├──────────────────────────────────┴► experts ─► + ─► one sum over all ranks
           └─► shared expert (all tokens), times sigmoid(x . w) ─┘

Source: vllm/model_executor/models/qwen2_moe.py#L125-L193 (Qwen2MoeSparseMoeBlock) @ v0.22.1.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mini_vllm.model.layers import Build, GatedMLP
from mini_vllm.model.layout import SINGLE
from mini_vllm.model.moe.args import MoEArgs
from mini_vllm.model.moe.experts import make_experts, without_sums
from mini_vllm.model.moe.routers import make_router


class Router(nn.Module):
    """Scores all experts and chooses k for each token: `[T, H]` -> weights and ids `[T, k]`.

    Every rank has the whole router, in the model's dtype, also if experts are quantised: rounding
    it would send tokens to other experts.
    """

    def __init__(self, hidden_size: int, args: MoEArgs) -> None:
        super().__init__()
        self.is_float32 = args.has_correction_bias
        self.weight = nn.Parameter(torch.empty(args.num_experts, hidden_size))
        self.bias = nn.Parameter(torch.empty(args.num_experts)) if args.router_bias else None
        self.e_score_correction_bias: nn.Parameter | None = None
        if args.has_correction_bias:
            self.e_score_correction_bias = nn.Parameter(torch.empty(args.num_experts).float())
            self.e_score_correction_bias.keeps_dtype = True  # type: ignore[attr-defined]
        self.route = make_router(args)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        dtype = torch.float32 if self.is_float32 else x.dtype
        bias = None if self.bias is None else self.bias.to(dtype)
        logits = F.linear(x.to(dtype), self.weight.to(dtype), bias)
        return self.route(logits, self.e_score_correction_bias)


class SparseMoE(nn.Module):
    """A mixture of experts, in the place of a layer's MLP.

    Args:
        hidden_size: H.
        args: the experts' config entries.
        build: as of every layer.
        prefix: the layer's name in the model, such as "model.layers.3.mlp".
    """

    def __init__(self, hidden_size: int, args: MoEArgs, build: Build, prefix: str) -> None:
        super().__init__()
        self.layout = build.parallel.row()
        self.gate = Router(hidden_size, args)
        self.experts = make_experts(hidden_size, args, build, f"{prefix}.experts")
        self.shares = self.experts.placement
        self.shared_expert: GatedMLP | None = None
        self.shared_expert_gate: ScalarGate | None = None
        if args.shared_expert_intermediate_size:
            self.shared_expert = GatedMLP(
                hidden_size,
                args.shared_expert_intermediate_size,
                bias=False,
                build=replace(build, parallel=SINGLE) if self.shares else without_sums(build),
                prefix=f"{prefix}.shared_expert",
            )
            if args.shared_expert_gate:
                self.shared_expert_gate = ScalarGate(hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        """`[T, H] -> [T, H]`."""
        if self.shares is None:
            return self.layout.finish(self.mix(x))
        return self.shares.gather(self.mix(self.shares.own_tokens(x)), len(x))

    def mix(self, x: Tensor) -> Tensor:
        """The output of the chosen experts and the shared expert: this rank's part for all tokens,
        or the whole output for this rank's tokens."""
        y = self.experts(x, *self.gate(x))
        if self.shared_expert is not None:
            shared = self.shared_expert(x)
            if self.shared_expert_gate is not None:
                shared = shared * self.shared_expert_gate(x)
            y = y + shared
        return y


class ScalarGate(nn.Module):
    """sigmoid(x . w), `[T, H] -> [T, 1]`: the factor of the shared expert for each token."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1, hidden_size))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype)).sigmoid()
