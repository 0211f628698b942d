"""Task 09.10: AWQ: search the scale of each channel."""

from __future__ import annotations

from typing import Any

import torch

from labkit.testing import expect
from mini_vllm.quantization.oneshot.awq import search_scale


def halves(weight: torch.Tensor) -> torch.Tensor:
    """A coarse grid: multiples of a half."""
    return (weight * 2).round() / 2


def test_09_10_what_was_given_stays(lab: Any) -> None:
    """Inputs and weight are what they were, to the bit: others read them."""
    x, weight = lab.random(32, 4) * 3, lab.random(8, 4, seed=1)
    before = x.clone(), weight.clone()
    search_scale(x, weight, halves)
    same = [bool((a == b).all()) for a, b in zip(before, (x, weight), strict=True)]
    expect(same, [True, True], at="x and weight, unchanged")


def test_09_10_a_loud_input_gets_finer_steps(lab: Any) -> None:
    """Input 2 is forty times as loud: its column is scaled up most."""
    x, weight = lab.random(64, 4), lab.random(8, 4, seed=1)
    x[:, 2] *= 40
    scales, cost = search_scale(x, weight, halves)
    plain = (x @ halves(weight).T - x @ weight.T).square().mean().item()
    expect(int(scales.argmax()), 2, at="the loudest input", scales=scales.tolist())
    expect(cost < plain / 4, True, at="the cost against rounding alone", cost=cost, plain=plain)


def test_09_10_no_gain_no_scale(lab: Any) -> None:
    """If rounding costs nothing, the first candidate wins: all ones."""
    scales, cost = search_scale(lab.random(9, 4), lab.random(3, 4, seed=1), lambda w: w * 1)
    cost_is_tiny = cost < 1e-10
    expect(cost_is_tiny, True, at="nothing is rounded", cost=cost)
    expect(len(scales), 4, at="one factor for each column")


def test_09_10_factors_lie_around_one(lab: Any) -> None:
    """The largest times the smallest is 1."""
    x, weight = lab.random(64, 6), lab.random(8, 6, seed=1)
    x *= torch.tensor([1.0, 2.0, 40.0, 0.5, 1.0, 9.0])
    scales, _ = search_scale(x, weight, halves)
    expect(round(float(scales.max() * scales.min()), 4), 1.0, at="largest * smallest")


def test_09_10_the_best_of_all_twenty(lab: Any) -> None:
    """Powers 0, 1/20 ... 19/20 of the mean magnitude; one token's shout does not decide."""
    x, weight = lab.random(64, 4), lab.random(8, 4, seed=1)
    x[:, 1] *= 6
    x[0, 3] = 500.0
    mean, costs = x.abs().mean(0), []
    for step in range(20):
        scales = mean ** (step / 20)
        scales = scales / (scales.max() * scales.min()).sqrt()
        output = (x / scales) @ halves(weight * scales).T
        costs.append((output - x @ weight.T).square().mean().item())
    _, cost = search_scale(x, weight, halves)
    at = f"the lowest is that of ratio {costs.index(min(costs))}/20"
    expect(round(cost, 4), round(min(costs), 4), at=at, costs=[round(c, 3) for c in costs])


def test_09_10_the_cost_is_that_of_the_output(lab: Any) -> None:
    """Mean square of (x / s) @ rounded(weight * s)^T - x @ weight^T."""
    x, weight = lab.random(32, 4), lab.random(8, 4, seed=1)
    x[:, 0] *= 30
    scales, cost = search_scale(x, weight, halves)
    output = (x / scales) @ halves(weight * scales).T
    expected = (output - x @ weight.T).square().mean().item()
    expect(round(cost, 6), round(expected, 6), at="the cost of the factors that are returned")
