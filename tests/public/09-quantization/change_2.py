"""Change request 2: scales are powers of two."""

from __future__ import annotations

import torch

from labkit.testing import expect
from mini_vllm.quantization.int8 import quantize_per_token


def scale_of(largest: float) -> float:
    return float(quantize_per_token(torch.tensor([[largest, 0.0]]))[1])


def test_change_2_the_next_power_of_two() -> None:
    """100 / 127 is 0.79."""
    expect(scale_of(100.0), 1.0, at="largest magnitude 100")


def test_change_2_exactly_a_power_of_two() -> None:
    """127 / 127 is 1, and 1 will do."""
    expect(scale_of(127.0), 1.0, at="largest magnitude 127")


def test_change_2_one_more() -> None:
    """128 does not fit any more."""
    expect(scale_of(128.0), 2.0, at="largest magnitude 128")
