"""Task 07.5: rotate queries and keys where they lie."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labkit.kernels.direct import solve
from labkit.testing import expect
from mini_vllm.kernels.pointwise import ROPE


def turn(x: Tensor, values: Tensor) -> None:
    """The kernel at work on x, watched, with cos and signed sin [T, 1, D] of angles [T, D / 2], as
    the model makes them once a step."""
    values = values[:, None, :]
    cos = torch.cat([values.cos()] * 2, -1)
    sin = torch.cat([-values.sin(), values.sin()], -1)
    solve(ROPE, dict(x=x, cos=cos, sin=sin))


def rotated(x: Tensor, values: Tensor) -> Tensor:
    first, second = x.double().chunk(2, -1)
    cos, sin = values.double().cos()[:, None], values.double().sin()[:, None]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def test_07_5_a_quarter_turn(close: Any) -> None:
    """(a, b) becomes (-b, a). The pair of feature 0 is feature 2, not feature 1."""
    x = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]])
    turn(x, torch.full((1, 2), torch.pi / 2))
    close(x, torch.tensor([[[-3.0, -4.0, 1.0, 2.0]]]), at="1 2 3 4, a quarter turn")


def test_07_5_position_zero_turns_nothing(close: Any) -> None:
    """Angle 0: cos 1, sin 0."""
    x = torch.arange(8.0).reshape(1, 2, 4)
    turn(x, torch.zeros(1, 2))
    close(x, torch.arange(8.0).reshape(1, 2, 4), at="angle 0")


def test_07_5_every_token_has_its_angles(close: Any) -> None:
    """4 tokens, 2 heads: all heads of a token turn by the same angles."""
    torch.manual_seed(0)
    x, values = torch.randn(4, 2, 16), torch.randn(4, 8)
    expected = rotated(x, values)
    turn(x, values)
    close(x, expected, at="x[t, h, d] after the call")


def test_07_5_sizes_that_are_no_powers_of_two(close: Any) -> None:
    """3 heads of 24: tiles of 4 heads and 16 pairs are masked."""
    torch.manual_seed(1)
    x, values = torch.randn(3, 3, 24), torch.randn(3, 12)
    expected = rotated(x, values)
    turn(x, values)
    close(x, expected, at="3 tokens, 3 heads of 24")


def test_07_5_values_beside_it_are_left_alone(close: Any) -> None:
    """x is a slice of q, k and v: tokens are `x_stride` apart, and v is not rotated."""
    torch.manual_seed(2)
    qkv, values = torch.randn(3, 4, 8), torch.randn(3, 4)
    x, v = qkv[:, :3], qkv[:, 3].clone()
    expected = rotated(x, values)
    turn(x, values)
    close(qkv[:, :3], expected, at="q and k, heads 0 to 2 of 4")
    expect(qkv[:, 3].equal(v), True, at="the values, head 3 of 4, are unchanged")


def test_07_5_lengths_are_kept(close: Any) -> None:
    """A rotation changes no pair's length, in float16 neither: compute in float32, round once."""
    torch.manual_seed(3)
    x, values = torch.randn(2, 2, 32).half(), torch.randn(2, 16)
    expected = rotated(x, values)
    turn(x, values)
    close(x, expected, at="float16, against float64", tolerance=2e-3)
