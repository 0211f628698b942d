"""Comparisons with an interval, and a search that answers honestly."""

from __future__ import annotations

import random

import pytest

from mini_vllm.observability.experiments import Promise, compare_pairs, successive_halving


def noisy(factor: float, spread: float, count: int, seed: int) -> tuple[list[float], list[float]]:
    """A machine whose speed drifts by half, so that only neighbours compare."""
    rng = random.Random(seed)
    old, new = [], []
    for i in range(count):
        drift = 1 + 0.5 * i / count
        old.append(drift * rng.lognormvariate(0, spread))
        new.append(drift * factor * rng.lognormvariate(0, spread))
    return old, new


def test_pairs_see_three_percent_through_a_drift_of_fifty() -> None:
    found = compare_pairs(*noisy(0.97, 0.01, 20, 1))
    assert found.is_result and abs(found.ratio - 0.97) < 0.01 and found.says().endswith("less")


def test_noise_is_no_result() -> None:
    found = compare_pairs(*noisy(0.97, 0.2, 10, 2))
    assert not found.is_result and "no difference was shown" in found.says()


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    """Ten pairs are few: the bootstrap is a little too sure, so 85 of 100 are asked for."""
    held = [compare_pairs(*noisy(1.0, 0.05, 10, seed), draws=200) for seed in range(200)]
    assert 170 <= sum(one.low <= 1 <= one.high for one in held) <= 199


@pytest.mark.parametrize(("old", "new"), [([1.0, 1.0], [1.0, 1.0]), ([1, 1, 1], [1, 1, 0])])
def test_what_cannot_be_compared(old: list[float], new: list[float]) -> None:
    with pytest.raises(ValueError, match="give at least 3 pairs, each above 0"):
        compare_pairs(old, new)


PROMISE = Promise(ttft_p99=1.0, tpot_p50=0.1)


def search(strains: list[float], seen: list[tuple[int, int]], **sizes: int):  # type: ignore[no-untyped-def]
    def measure(config: int, requests: int) -> tuple[float, float]:
        seen.append((config, requests))
        return strains[config], 0.01

    sizes = {"least": 10, "most": 40} | sizes
    return successive_halving(range(len(strains)), measure, PROMISE, **sizes)


def test_the_better_half_goes_on_with_twice_as_many_requests() -> None:
    seen: list[tuple[int, int]] = []
    found = search([0.9, 0.5, 3.0, 2.0, 0.7, 4.0, 5.0, 6.0], seen)
    assert found.best == found.nearest == 1
    assert seen == [
        *((n, 10) for n in range(8)),
        (1, 20),
        (4, 20),
        (0, 20),
        (3, 20),
        (1, 40),
        (4, 40),
    ]
    assert len(set(seen)) == len(seen), "no measurement is made twice"
    assert sum(requests for _, requests in seen) < 8 * 40 * 0.8


def test_an_impossible_promise_has_the_answer_none() -> None:
    found = search([1.2, 1.1, 5.0], [])
    assert found.best is None and found.nearest == 1
    assert [one.strain for one in found.measured if one.config == 1] == [1.1, 1.1, 1.1]


def test_the_tighter_half_of_the_promise_decides() -> None:
    assert PROMISE.strain(0.5, 0.2) == 2.0 and PROMISE.strain(1.0, 0.01) == 1.0


def test_sizes_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="0 configurations, from 10 to 40 requests"):
        search([], [])
    with pytest.raises(ValueError, match="from 50 to 40"):
        search([1.0], [], least=50)
