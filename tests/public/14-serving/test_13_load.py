"""Task 14.13: a load that does not wait, and what was good of it."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest

from labkit.testing import expect


def gaps(times: list[float]) -> list[float]:
    return [late - early for early, late in zip([0.0, *times], times, strict=False)]


def test_14_13_all_at_once(scene: Any) -> None:
    """An infinite rate: no request waits."""
    expect(scene.load_times(3, math.inf, 1.0, 0), [0.0, 0.0, 0.0], at="rate inf")


def test_14_13_a_metronome(scene: Any) -> None:
    """An infinite burstiness: equal gaps."""
    times = [round(time, 9) for time in scene.load_times(4, 2.0, math.inf, 0)]
    expect(times, [0.5, 1.0, 1.5, 2.0], at="two a second")


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_14_13_the_rate_is_kept(scene: Any, burstiness: float) -> None:
    """Times ascend, and the last is count / rate, whatever was drawn."""
    times = scene.load_times(50, 5.0, burstiness, 3)
    expect(round(times[-1], 6), 10.0, at="50 requests at 5 a second")
    expect(times == sorted(times) and len(times) == 50, True, at="they ascend")


@pytest.mark.parametrize(("burstiness", "expected"), [(0.25, 2.0), (1.0, 1.0), (4.0, 0.5)])
def test_14_13_the_spread(scene: Any, burstiness: float, expected: float) -> None:
    """Gaps have a coefficient of variation of one over the root of the burstiness."""
    found = gaps(scene.load_times(10_000, 5.0, burstiness, 1))
    cv = statistics.pstdev(found) / statistics.mean(found)
    expect(
        abs(cv / expected - 1) < 0.1,
        True,
        at=f"burstiness {burstiness}",
        yours=round(cv, 3),
        expected_cv=expected,
    )


def test_14_13_seeds(scene: Any) -> None:
    """One seed repeats itself, another one does not."""
    first, again, other = (scene.load_times(9, 1.0, 1.0, seed) for seed in (1, 1, 2))
    expect([first == again, first == other], [True, False], at="seeds 1, 1, 2")


def test_14_13_goodput(scene: Any) -> None:
    """Requests a second that meet all objectives; a limit that is met exactly is met."""
    results = [[0.1, 1.0, 10], [0.2, 1.1, 10], [0.3, 1.2, 10]]
    expect(scene.good(results, {"ttft": 200.0}, 4.0), 0.5, at="ttft up to 200 ms, 4 seconds")
    expect(scene.good(results, {"ttft": 200.0, "e2el": 1000.0}, 4.0), 0.25, at="and 1 s in all")


def test_14_13_goodput_of_one_token(scene: Any) -> None:
    """A single token has no time per later token: its TPOT of 0 meets every limit."""
    results = [[0.1, 9.0, 1], [0.1, 9.1, 2]]
    expect(scene.good(results, {"tpot": 50.0}, 1.0), 1.0, at="tpot up to 50 ms")


def test_14_13_the_first_waits_too(scene: Any) -> None:
    """There is a gap before the first request as before all others."""
    firsts = [scene.load_times(9, 1.0, 1.0, seed)[0] for seed in range(20)]
    expect(min(firsts) > 0, True, at="the first of nine times, for twenty seeds", yours=firsts)
