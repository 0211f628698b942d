"""Measurements that can be trusted: a comparison with an interval, and a search that wastes few."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


# ---------------------------------------------------------------- an honest comparison


@dataclass(frozen=True)
class Comparison:
    """How two ways of doing the same compare: `new` takes `ratio` times as long as `old`."""

    ratio: float
    low: float
    high: float
    """The interval that holds the true ratio in 95 of 100 such experiments."""
    pairs: int

    @property
    def is_result(self) -> bool:
        """Whether the interval lies on one side of 1: else nothing was shown."""
        return self.high < 1 or self.low > 1

    def says(self, what: str = "of the time") -> str:
        """One sentence. `what` is measured, and less of it is better."""
        text = f"{self.ratio:.3f} times as much {what} ({self.low:.3f} to {self.high:.3f})"
        which = "less" if self.ratio < 1 else "more"
        return f"{text}: {which if self.is_result else 'no difference was shown'}"


def compare_pairs(
    old: Sequence[float], new: Sequence[float], seed: int = 0, draws: int = 2000
) -> Comparison:
    """Compare measurements that were taken in turns: old, new, old, new, ...

    A machine gets warm and other programs come and go, so neighbours are compared, by the ratio of
    each pair. As many pairs are drawn anew `draws` times, with repetition, and 95 % of the mean
    ratios lie in the interval, 2.5 % on each side of it (the bootstrap). Means are geometric: twice
    and half cancel out. The same `seed` gives the same interval. Python's global generator, which
    other code draws from, stays as it is.

    Raises:
        ValueError: for fewer than 3 pairs, unpaired times, and times that are not above 0.
    """
    # TODO 19.5
    raise NotImplementedError(
        "TODO 19.5: write compare_pairs in labs/19-performance-engineer/experiments.py"
        " (phase 19, 02-mini-build.md#task-5)"
    )


# ---------------------------------------------------------------- a search under a promise


@dataclass(frozen=True)
class Promise:
    """What users are told: seconds to the first token for 99 of 100, and seconds a token for half
    of them."""

    ttft_p99: float
    tpot_p50: float

    def strain(self, ttft_p99: float, tpot_p50: float) -> float:
        """How much of the promise is used up, by its tighter half: at most 1 holds it."""
        return max(ttft_p99 / self.ttft_p99, tpot_p50 / self.tpot_p50)


@dataclass(frozen=True)
class Measured(Generic[T]):
    """One measurement of one configuration."""

    config: T
    requests: int
    ttft_p99: float
    tpot_p50: float
    strain: float


@dataclass
class Search(Generic[T]):
    """What a search has found and what it has measured, in order."""

    best: T | None
    """None: no configuration holds the promise."""
    nearest: T
    """The one with the least strain, whether it holds or not."""
    measured: list[Measured[T]] = field(default_factory=list)


def successive_halving(
    configs: Sequence[T],
    measure: Callable[[T, int], tuple[float, float]],
    promise: Promise,
    least: int,
    most: int,
) -> Search[T]:
    """Find the configuration that strains a promise the least, with few long measurements.

    All are measured with `least` requests. The better half, rounded up, goes on with twice as many,
    and so on up to `most`, where it ends. So a hopeless one costs little, and the last ones are
    measured well. One that is left alone, or was given alone, has won, and is measured with `most`
    at once. Of equal strains the one that led in the round before is the better, in the first round
    the one that was given first. Only the longest measurement counts, and the promise must hold
    there: a short one misses the slow requests that make a p99. Where it does not hold, `best` is
    None and `nearest` says how near it was.

    Args:
        configs: all different.
        measure: `(config, requests) -> (ttft_p99, tpot_p50)` in seconds. It is not called twice
            with the same arguments.

    Raises:
        ValueError: without a configuration, or for sizes that are not 1 <= least <= most.

    Source: Jamieson and Talwalkar, "Non-stochastic best arm identification and hyperparameter
    optimization", AISTATS 2016.
    """
    # TODO 19.6
    raise NotImplementedError(
        "TODO 19.6: write successive_halving in labs/19-performance-engineer/experiments.py"
        " (phase 19, 02-mini-build.md#task-6)"
    )
