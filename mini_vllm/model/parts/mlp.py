"""An MLP without a gate: down(act(up(x))).

Source: vllm/model_executor/models/starcoder2.py#L142-L168 (Starcoder2MLP) @ v0.22.1.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from mini_vllm.model.config import ModelArgs
from mini_vllm.model.layers import Build, Linear

gelu_tanh = partial(F.gelu, approximate="tanh")
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "silu": F.silu,
}


class MLP(nn.Module):
    """Two products with an activation between them: `[T, H] -> [T, H]`."""

    def __init__(self, args: ModelArgs, build: Build, index: int, prefix: str) -> None:
        super().__init__()
        hidden, size, bias = args.hidden_size, args.intermediate_size, args.mlp_bias
        column, row = build.parallel.column(), build.parallel.row()
        self.up_proj = Linear(hidden, size, bias, build, column, f"{prefix}.up_proj")
        self.down_proj = Linear(size, hidden, bias, build, row, f"{prefix}.down_proj")
        self.act = ACTIVATIONS[args.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down_proj(self.act(self.up_proj(x)))
        return y
