"""Change request 1: the second loudest sets the scale."""

from __future__ import annotations

import torch

from labkit.testing import expect
from mini_vllm.quantization.packing import choose_qparams, dequantize, quantize


def test_change_1_the_second_loudest() -> None:
    """14 is loud, 7 sets the scale."""
    scale, _ = choose_qparams(torch.tensor([[14.0, -7.0, 3.5, 0.0]]), 4, 4, True)
    expect(scale.tolist(), [[1.0]], at="group 14 -7 3.5 0")


def test_change_1_the_loudest_is_clamped() -> None:
    """14 comes back as 7."""
    weight = torch.tensor([[14.0, -7.0, 3.0, 0.0]])
    scale, zero = choose_qparams(weight, 4, 4, True)
    back = dequantize(quantize(weight, scale, zero, 4), scale, zero)
    expect(back.tolist(), [[7.0, -7.0, 3.0, 0.0]], at="group 14 -7 3 0")


def test_change_1_alone_in_its_group() -> None:
    """All others are 0."""
    scale, _ = choose_qparams(torch.tensor([[0.0, 14.0]]), 4, 2, True)
    expect(scale.tolist(), [[2.0]], at="group 0 14")
