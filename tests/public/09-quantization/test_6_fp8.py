"""Task 09.6: quantize to fp8 in blocks."""

from __future__ import annotations

from typing import Any

import torch

from labkit.testing import expect
from mini_vllm.quantization.fp8 import FP8, MIN_SCALE, dequantize_block, quantize_block


def test_09_6_the_largest_of_a_block_becomes_448(lab: Any) -> None:
    """Two blocks of 1 x 2: each has its scale."""
    numbers, scale = quantize_block(torch.tensor([[4.48, 1.04, -896.0, 2.0]]), (1, 2))
    expect(lab.listed(scale), [[0.01, 2.0]], at="largest magnitudes 4.48 and 896")
    expect(lab.listed(numbers.float()), [[448.0, 104.0, -448.0, 1.0]], at="e4m3 numbers")
    expect(numbers.dtype, FP8, at="the type")


def test_09_6_a_block_is_a_rectangle(lab: Any) -> None:
    """2 x 2 blocks of a 4 x 4 matrix."""
    weight = torch.arange(16.0).reshape(4, 4) * 448
    _, scale = quantize_block(weight, (2, 2))
    expect(lab.listed(scale), [[5.0, 7.0], [13.0, 15.0]], at="the largest of each block / 448")


def test_09_6_the_last_blocks_may_be_smaller(lab: Any) -> None:
    """3 rows and 5 columns in blocks of 2 x 2."""
    weight = lab.random(3, 5)
    numbers, scale = quantize_block(weight, (2, 2))
    expect((list(numbers.shape), list(scale.shape)), ([3, 5], [2, 3]), at="shapes")
    corner = abs(weight[2, 4].item()) / 448
    expect(round(scale[1, 2].item(), 8), round(corner, 8), at="a block of one number")


def test_09_6_blocks_come_back(lab: Any) -> None:
    """Within a sixteenth, for numbers not much smaller than the largest."""
    weight = lab.random(6, 10).sign() * (1 + lab.random(6, 10, seed=1).abs())
    numbers, scale = quantize_block(weight, (4, 4))
    back = dequantize_block(numbers, scale, (4, 4))
    worst = float(((back - weight) / weight).abs().max())
    expect(worst <= 1 / 16, True, at="relative error", worst=worst)


def test_09_6_a_scale_multiplies(lab: Any) -> None:
    """Whatever its name in the file: number times scale."""
    weight = torch.tensor([[1.0, 2.0, 3.0]]).to(FP8)
    back = dequantize_block(weight, torch.tensor([[10.0, 0.5]]), (1, 2))
    expect(lab.listed(back), [[10.0, 20.0, 1.5]], at="scales 10 and 0.5, two columns a block")


def test_09_6_zeros_stay_zeros(lab: Any) -> None:
    """A block of zeros has scale MIN_SCALE."""
    numbers, scale = quantize_block(torch.zeros(2, 2), (2, 2))
    expect(lab.listed(numbers.float()), [[0.0, 0.0], [0.0, 0.0]], at="all weights are 0")
    expect(0 < scale.item() <= MIN_SCALE * 1.01, True, at="its scale", scale=scale.item())


def test_09_6_a_weight_is_divided(lab: Any) -> None:
    """A weight is divided by its scale, and not multiplied by 1 / scale.

    Divided, the second is 1.0625, half way between 1 and 1.125, and rounds to the even number, 1.
    Multiplied it is a little more.
    """
    weight = torch.tensor([[1.3203048706054688, 0.00313130347058177]])
    numbers, _ = quantize_block(weight, (1, 2))
    expect(lab.listed(numbers.float()), [[448.0, 1.0]], at="a scale of 1.3203... / 448")
