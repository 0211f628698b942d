"""Task 09.5: quantize activations, one scale for each token."""

from __future__ import annotations

from typing import Any

import torch

from labkit.testing import expect
from mini_vllm.quantization.int8 import MIN_SCALE, quantize_per_token, scaled_product


def test_09_5_each_token_has_its_scale(lab: Any) -> None:
    """A quiet token keeps fine steps beside a loud one."""
    x = torch.tensor([[1.27, -0.5, 0.01], [-254.0, 100.0, 3.0]])
    numbers, scale = quantize_per_token(x)
    expect(lab.listed(scale), [[0.01], [2.0]], at="largest magnitudes 1.27 and 254")
    expect(lab.listed(numbers), [[127, -50, 1], [-127, 50, 2]], at="rounded", x=x.tolist())
    expect(numbers.dtype, torch.int8, at="the type")


def test_09_5_it_rounds_and_does_not_cut_off(lab: Any) -> None:
    """1.6 steps are 2, half steps go to even."""
    numbers, _ = quantize_per_token(torch.tensor([[127.0, 1.6, -1.6, 0.5, 1.5]]))
    expect(lab.listed(numbers), [[127, 2, -2, 0, 2]], at="scale 1")
    loud = torch.tensor([[100.0]])
    numbers, _ = quantize_per_token(torch.cat((loud, 3.5 * (loud / 127)), 1))
    expect(lab.listed(numbers), [[127, 4]], at="3.5 steps of 100 / 127: divide by the scale")


def test_09_5_a_token_of_zeros_stays_zeros(lab: Any) -> None:
    """No division by zero: the scale is MIN_SCALE."""
    numbers, scale = quantize_per_token(torch.zeros(1, 3))
    expect((lab.listed(numbers), scale.item() > 0), ([[0, 0, 0]], True), at="x = 0 0 0")
    expect(abs(scale.item() / MIN_SCALE - 1) < 1e-6, True, at="its scale", scale=scale.item())


def test_09_5_scales_leave_the_sum(lab: Any) -> None:
    """The sum of whole numbers, times the token's scale, times the row's."""
    x, weight = torch.tensor([[1, 2], [3, -4]]).char(), torch.tensor([[5, 6], [-7, 8]]).char()
    y = scaled_product(x, torch.tensor([[0.5], [2.0]]), weight, torch.tensor([[1.0], [10.0]]))
    expect(lab.listed(y), [[8.5, 45.0], [-18.0, -1060.0]], at="two tokens, two rows")
    expect(y.dtype, torch.float32, at="the type")


def test_09_5_long_sums_do_not_overflow(lab: Any) -> None:
    """127 * 127, a thousand times, fits no int16."""
    ones = torch.ones(1, 1)
    x = torch.full((1, 1001), 127, dtype=torch.int8)
    expect(lab.listed(scaled_product(x, ones, x, ones)), [[127.0 * 127 * 1001]], at="1001 columns")
