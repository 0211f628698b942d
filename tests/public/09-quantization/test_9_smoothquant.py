"""Task 09.9: move the outliers."""

from __future__ import annotations

from typing import Any

import torch

from labkit.testing import expect
from mini_vllm.quantization.oneshot.smoothquant import fold_into_norm, smooth_scales


def test_09_9_half_of_the_loudness_moves(lab: Any) -> None:
    """alpha 0.5: sqrt(x / w)."""
    scales = smooth_scales(torch.tensor([100.0, 1.0]), torch.tensor([1.0, 4.0]))
    expect(lab.listed(scales), [10.0, 0.5], at="x 100 and 1, w 1 and 4")


def test_09_9_alpha_says_how_much(lab: Any) -> None:
    """0.75 moves more than 0.5; 1 makes all inputs equally large."""
    x, w = torch.tensor([16.0]), torch.tensor([16.0])
    found = [smooth_scales(x, w, alpha).item() for alpha in (0.0, 0.5, 0.75, 1.0)]
    expect([round(s, 4) for s in found], [0.0625, 1.0, 4.0, 16.0], at="alpha 0, 0.5, 0.75, 1")


def test_09_9_silent_channels_give_no_zero(lab: Any) -> None:
    """A channel that is always 0 still has a scale to divide by."""
    scales = smooth_scales(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0]))
    expect(bool((scales > 0).all() and scales.isfinite().all()), True, at="x 0, w 0")


def test_09_9_the_product_stays(lab: Any) -> None:
    """What the norm divides, the columns multiply: the layer says the same."""
    x, norm, weight = lab.random(3, 4), torch.tensor([1.0, 2.0, 3.0, 4.0]), lab.random(2, 4, seed=1)
    before = (x * norm) @ weight.T
    fold_into_norm(norm, weight, torch.tensor([2.0, 4.0, 0.5, 8.0]))
    expect(lab.listed(norm), [0.5, 0.5, 6.0, 0.5], at="the norm's weight, in place")
    expect(lab.listed((x * norm) @ weight.T, 3), lab.listed(before, 3), at="the product")
