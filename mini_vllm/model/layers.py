"""The parts every decoder is made of. Activations are flat: `[T, features]`, T tokens of all requests."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, over the last dimension."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Embedding(nn.Module):
    """One row of `weight` for each token id: `[T] -> [T, hidden]`."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size))

    def forward(self, input_ids: Tensor) -> Tensor:
        return F.embedding(input_ids, self.weight)


class Linear(nn.Module):
    """x @ weight^T + bias, `[T, in] -> [T, sum(out)]`.

    Several projections of the same input are one matrix whose rows are stacked; `output_sizes`
    says how many rows each has. One product instead of three costs less than three small ones.
    Source: vllm/model_executor/layers/linear.py (MergedColumnParallelLinear) @ v0.22.1.
    """

    def __init__(self, input_size: int, output_sizes: int | Sequence[int], bias: bool) -> None:
        super().__init__()
        self.output_sizes = [output_sizes] if isinstance(output_sizes, int) else list(output_sizes)
        self.weight = nn.Parameter(torch.empty(sum(self.output_sizes), input_size))
        self.bias = nn.Parameter(torch.empty(sum(self.output_sizes))) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x)), with gate and up stacked in one matrix."""

    def __init__(self, hidden_size: int, intermediate_size: int, bias: bool) -> None:
        super().__init__()
        self.gate_up_proj = Linear(hidden_size, [intermediate_size] * 2, bias)
        self.down_proj = Linear(intermediate_size, hidden_size, bias)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate) * up)
