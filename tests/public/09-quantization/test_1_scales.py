"""Task 09.1: choose a scale and a zero point for each group."""

from __future__ import annotations

from typing import Any

import torch

from labkit.testing import expect
from mini_vllm.quantization.packing import choose_qparams


def test_09_1_the_largest_magnitude_is_seven_steps(lab: Any) -> None:
    """Symmetric, 4 bits: the largest magnitude becomes 7 steps, zero is 8."""
    weight = torch.tensor([[0.7, -1.4, 0.0, 0.1]])
    scale, zero = choose_qparams(weight, 4, -1, True)
    expect(lab.listed(scale), [[0.2]], at="the largest magnitude is 1.4")
    expect(lab.listed(zero), [[8]], at="zero in the middle of 0 .. 15")


def test_09_1_each_group_has_its_own(lab: Any) -> None:
    """Two groups of two columns in each of two rows."""
    weight = torch.tensor([[0.7, 0.1, 7.0, 1.0], [1.4, 0.0, 0.0, -2.1]])
    scale, _ = choose_qparams(weight, 4, 2, True)
    expect(lab.listed(scale), [[0.1, 1.0], [0.2, 0.3]], at="group_size=2", weight=weight.tolist())


def test_09_1_asymmetric_ranges_are_cut_into_fifteen_steps(lab: Any) -> None:
    """Asymmetric: from the smallest to the largest; zero lies where 0 falls."""
    scale, zero = choose_qparams(torch.tensor([[-0.5, 1.0, 0.3, 0.0]]), 4, -1, False)
    expect(lab.listed(scale), [[0.1]], at="1.5 in 15 steps")
    expect(lab.listed(zero), [[5]], at="0 is 5 steps above the smallest")


def test_09_1_zero_is_always_in_the_range(lab: Any) -> None:
    """Numbers that are all above 0, or all below: the range is stretched to 0."""
    scale, zero = choose_qparams(torch.tensor([[1.0, 3.0], [-3.0, -1.0]]), 4, -1, False)
    expect(lab.listed(scale), [[0.2], [0.2]], at="3 in 15 steps")
    expect(lab.listed(zero), [[0], [15]], at="0 is the smallest of one, the largest of the other")


def test_09_1_a_group_of_zeros_has_scale_one(lab: Any) -> None:
    """Nothing to divide by: scale 1."""
    for symmetric in (True, False):
        scale, zero = choose_qparams(torch.zeros(1, 4), 4, 2, symmetric)
        expect(lab.listed(scale), [[1.0, 1.0]], at=f"all weights are 0, symmetric={symmetric}")
        expect(lab.listed(zero), [[8 * symmetric] * 2], at=f"its zero, symmetric={symmetric}")


def test_09_1_other_widths(lab: Any) -> None:
    """8 bits: 127 steps."""
    scale, zero = choose_qparams(torch.tensor([[12.7, 1.0]]), 8, -1, True)
    expect((lab.listed(scale), lab.listed(zero)), ([[0.1]], [[128]]), at="bits=8, largest 12.7")
