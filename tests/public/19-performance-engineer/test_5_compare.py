"""Task 19.5: an honest comparison."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from labkit.testing import expect
from mini_vllm.observability.experiments import compare_pairs


def noisy(factor: float, spread: float, count: int, seed: int) -> tuple[list[float], list[float]]:
    """A machine that gets slower by half while it measures, so that only neighbours compare."""
    rng = random.Random(seed)
    old, new = [], []
    for i in range(count):
        drift = 1 + 0.5 * i / count
        old.append(drift * rng.lognormvariate(0, spread))
        new.append(drift * factor * rng.lognormvariate(0, spread))
    return old, new


def test_19_5_ratios_of_neighbours(near: Any) -> None:
    """The machine gets four times slower meanwhile; each pair says 0.9."""
    old = [1.0, 2.0, 3.0, 4.0]
    found = compare_pairs(old, [0.9 * one for one in old])
    near(found.ratio, 0.9, at="each new time is 0.9 of its neighbour: ratio")
    near(found.low, 0.9, at="each new time is 0.9 of its neighbour: low")
    near(found.high, 0.9, at="each new time is 0.9 of its neighbour: high")
    expect(found.pairs, 4, at="pairs")


def test_19_5_twice_and_half_cancel_out(near: Any) -> None:
    """The mean of 2 and 0.5 is 1, not 1.25: geometric."""
    found = compare_pairs([1.0, 1.0, 1.0, 1.0], [2.0, 0.5, 2.0, 0.5])
    near(found.ratio, 1.0, at="ratios 2, 0.5, 2, 0.5: ratio")
    expect(found.is_result, False, at="ratios 2, 0.5, 2, 0.5: a result")


def test_19_5_three_percent_is_a_result_where_noise_is_one() -> None:
    """20 pairs with 1 % of noise, on a machine that drifts by half."""
    found = compare_pairs(*noisy(0.97, 0.01, 20, 1))
    at = "3 % less, 1 % of noise, 20 pairs: a result"
    expect(found.is_result, True, at=at, low=found.low, high=found.high)
    expect(found.says().endswith("less"), True, at="says that it takes less")
    assert 0.965 < found.low < found.ratio < found.high < 0.985, f"{found.says()}: too wide, or off"


def test_19_5_three_percent_is_none_where_noise_is_twenty() -> None:
    """10 pairs with 20 % of noise: the interval lies on both sides of 1."""
    found = compare_pairs(*noisy(0.97, 0.2, 10, 2))
    expect(found.is_result, False, at="3 % less, 20 % of noise, 10 pairs: a result")
    assert found.high / found.low > 1.15, f"{found.says()}: too sure of itself"


def test_19_5_the_interval_is_as_wide_as_the_noise_by_the_root() -> None:
    """About 4 standard errors of the mean: 64 pairs are four times as sure as 4."""
    for count, spread in ((64, 0.1), (16, 0.1)):
        found = compare_pairs(*noisy(1.0, spread, count, 3))
        width = math.log(found.high / found.low)
        right = 2 * 1.96 * spread * math.sqrt(2 / count)
        at = f"{count} pairs, {spread:.0%} of noise: the interval's width, {width:.3f}"
        expect(0.7 * right < width < 1.3 * right, True, at=at, about=round(right, 3))


def test_19_5_more_time_is_a_result_too() -> None:
    """A change for the worse is told as one."""
    found = compare_pairs(*noisy(1.1, 0.01, 10, 4))
    expect((found.is_result, found.low > 1.05), (True, True), at="10 % more: a result, low")


def test_19_5_the_same_seed_draws_the_same() -> None:
    """A reader can repeat it; another seed moves the ends a little."""
    times = noisy(1.0, 0.1, 10, 5)
    expect(compare_pairs(*times, seed=7), compare_pairs(*times, seed=7), at="seed 7, twice")
    ends = {compare_pairs(*times, seed=seed, draws=50).low for seed in range(5)}
    expect(len(ends) > 1, True, at="five seeds, 50 draws each: different lower ends")


def test_19_5_few_draws_leave_the_ends() -> None:
    """40 draws: one on each side lies outside. The interval still holds the ratio."""
    found = compare_pairs(*noisy(1.0, 0.1, 12, 6), draws=40)
    expect(found.low < found.ratio < found.high, True, at="40 draws: low < ratio < high")


@pytest.mark.parametrize(
    ("old", "new"), [([1.0, 1.0], [1.0, 1.0]), ([1, 1, 1], [1, 1, 0]), ([1, 1, 1, 1], [1, 1, 1])]
)
def test_19_5_what_cannot_be_compared(old: list[float], new: list[float]) -> None:
    """Fewer than 3 pairs, a time of nothing, a measurement without a partner."""
    with pytest.raises(ValueError):
        compare_pairs(old, new)
