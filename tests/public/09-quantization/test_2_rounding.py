"""Task 09.2: quantize and dequantize."""

from __future__ import annotations

from typing import Any

import torch

from labkit.testing import expect
from mini_vllm.quantization.packing import dequantize, quantize


def test_09_2_stored_numbers_are_steps_above_zero(lab: Any) -> None:
    """Divide by the scale, round, add zero."""
    weight, scale = torch.tensor([[0.2, -0.4, 1.0, 0.09]]), torch.tensor([[0.2]])
    stored = quantize(weight, scale, torch.tensor([[8]]), 4)
    expect(lab.listed(stored), [[9, 6, 13, 8]], at="scale 0.2, zero 8", weight=weight.tolist())


def test_09_2_halves_go_to_even(lab: Any) -> None:
    """0.5 and 1.5 steps: rounded half to even, before zero is added."""
    stored = quantize(
        torch.tensor([[0.5, 1.5, 2.5, -0.5]]), torch.ones(1, 1), torch.tensor([[7]]), 4
    )
    expect(lab.listed(stored), [[7, 9, 9, 7]], at="scale 1, zero 7")
    scale = torch.tensor([[1.3]])
    stored = quantize(3.5 * scale, scale, torch.tensor([[8]]), 4)
    expect(lab.listed(stored), [[12]], at="3.5 steps of 1.3: 1 / scale times them is a little less")


def test_09_2_what_does_not_fit_is_clamped(lab: Any) -> None:
    """Never below 0, never above 2^bits - 1."""
    stored = quantize(torch.tensor([[100.0, -100.0]]), torch.ones(1, 1), torch.tensor([[8]]), 4)
    expect(lab.listed(stored), [[15, 0]], at="weights of 100 and -100")


def test_09_2_reading_back(lab: Any) -> None:
    """(stored - zero) * scale, with the numbers of each group."""
    stored = torch.tensor([[9, 6, 15, 0]])
    weight = dequantize(stored, torch.tensor([[0.5, 2.0]]), torch.tensor([[8, 15]]))
    expect(lab.listed(weight), [[0.5, -1.0, 0.0, -30.0]], at="groups of two columns")


def test_09_2_a_round_trip_is_within_half_a_step(lab: Any) -> None:
    """The error is at most half of what a step is worth."""
    weight, scale = lab.random(4, 16), torch.full((4, 2), 0.5)
    zero = torch.full((4, 2), 128)
    back = dequantize(quantize(weight, scale, zero, 8), scale, zero)
    worst = float((back - weight).abs().max())
    expect(worst <= 0.2501, True, at="scale 0.5", worst=worst)
