"""Small inputs of the mixers, the same each time. `record.py` asks transformers about them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

Four = tuple[Tensor, Tensor, Tensor, Tensor]
Six = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
Seven = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]

LENS = (1, 2, 37, 3)
"""Tokens of the requests of one flat batch."""


def draw(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def gated_delta(num: int = sum(LENS), states: int = len(LENS), strength: float = 1.0) -> Six:
    """q, k, v, g, beta of `num` tokens, and `states` states: 3 heads, Dk 4, Dv 5."""
    q, k = (F.normalize(draw(seed, num, 3, 4), dim=-1) for seed in (1, 2))
    g = -F.softplus(draw(4, num, 3)) * strength
    return q / 2, k, draw(3, num, 3, 5), g, draw(5, num, 3).sigmoid(), draw(6, states, 3, 4, 5)


def state_space(num: int = sum(LENS), states: int = len(LENS), groups: int = 1) -> Seven:
    """x, dt, A, B, C, D of `num` tokens, and `states` states: 4 heads, P 3, N 5."""
    dt = F.softplus(draw(12, num, 4))
    b, c = draw(14, num, groups, 5), draw(15, num, groups, 5)
    a, d = -draw(13, 4).exp(), draw(16, 4)
    return draw(11, num, 4, 3), dt, a, b, c, d, draw(17, states, 4, 3, 5)


def convolution(num: int = sum(LENS), states: int = len(LENS)) -> Four:
    """x, weight, bias, tails: 6 channels, width 4."""
    return draw(21, num, 6), draw(22, 6, 4), draw(23, 6), draw(24, states, 3, 6)


def attention() -> Four:
    """q of 5 tokens, k and v of 9, and the sinks: 4 heads of 4."""
    return draw(31, 5, 4, 4), draw(32, 9, 4, 4), draw(33, 9, 4, 4), draw(34, 4)


def latents() -> Four:
    """q `[7, 2, 3 + 4]`, latents `[30, 6 + 4]`, W_uk and W_uv: 2 heads, P 3, R 4, C 6, V 5."""
    return draw(41, 7, 2, 7), draw(42, 30, 10), draw(43, 2, 3, 6), draw(44, 2, 5, 6)
