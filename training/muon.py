"""The Muon optimizer: momentum whose update is made orthogonal, for weight matrices.

A gradient of a weight matrix is dominated by a few directions. Muon replaces the momentum by the
nearest matrix whose singular values are all about one, so that every direction learns at the same
pace; a small model then needs about half the steps. Torch has a Muon of its own that works in
bfloat16, which is slow on processors without bfloat16 arithmetic; this one keeps float32.

The idea and the coefficients are from Keller Jordan, https://kellerjordan.github.io/posts/muon/.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalize(matrix: Tensor, iterations: int = 5) -> Tensor:
    """Push all singular values of `matrix` [..., rows, columns] to about one (Newton-Schulz)."""
    a, b, c = COEFFICIENTS
    wide = matrix.shape[-2] <= matrix.shape[-1]
    x = matrix if wide else matrix.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(iterations):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if wide else x.mT


class Muon(torch.optim.Optimizer):
    """Muon with Nesterov momentum and decoupled weight decay, for matrices and stacks of them."""

    def __init__(
        self, params: Iterable[Tensor], lr: float, momentum: float, weight_decay: float
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            for weight in group["params"]:
                momentum = self.state[weight].setdefault("momentum", torch.zeros_like(weight))
                momentum.lerp_(weight.grad, 1 - group["momentum"])
                update = orthogonalize(weight.grad.lerp(momentum, group["momentum"]))
                scale = max(1.0, weight.shape[-2] / weight.shape[-1]) ** 0.5
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.add_(update, alpha=-group["lr"] * scale)
