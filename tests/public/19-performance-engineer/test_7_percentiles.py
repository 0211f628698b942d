"""Task 19.7: percentiles of values, and what a histogram can say of them."""

from __future__ import annotations

import math
import random

import pytest

from labkit.testing import expect
from mini_vllm.observability.capacity import bounds_from_buckets, percentile

ENDS = [1.0, 2.0, 5.0, math.inf]


def test_19_7_a_percentile_is_one_of_the_values() -> None:
    """Of 1 to 10: half of them are at most 5, and 9 of 10 at most 9."""
    values = [float(n) for n in range(1, 11)]
    got = [percentile(values, p) for p in (1, 10, 50, 90, 99, 100)]
    expect(got, [1.0, 1.0, 5.0, 9.0, 10.0, 10.0], at="1 to 10: percentiles 1, 10, 50, 90, 99, 100")


def test_19_7_the_rank_is_rounded_up() -> None:
    """Of 3 values the 50th percentile is the second: two of three are at most that."""
    expect(percentile([1.0, 2.0, 3.0], 50), 2.0, at="1, 2, 3: percentile 50")
    expect(percentile([1.0, 2.0, 3.0, 4.0], 50), 2.0, at="1, 2, 3, 4: percentile 50")
    expect(percentile([1.0, 2.0, 3.0, 4.0], 51), 3.0, at="1, 2, 3, 4: percentile 51")


def test_19_7_any_order_and_nothing_is_moved() -> None:
    """Values come as requests end."""
    values = [3.0, 1.0, 2.0]
    expect(percentile(values, 99), 3.0, at="3, 1, 2: percentile 99")
    expect(values, [3.0, 1.0, 2.0], at="the values afterwards")


def test_19_7_what_has_no_percentile() -> None:
    """No values, and a percent that is none."""
    for values, percent in (([], 50), ([1.0], 0), ([1.0], 101), ([1.0], -1)):
        with pytest.raises(ValueError):
            percentile(values, percent)


def test_19_7_the_bucket_that_holds_the_rank() -> None:
    """4 up to 1, 4 up to 2, 2 up to 5: the fourth is in the first bucket, the fifth is not."""
    counts = [4, 4, 2, 0]
    got = [bounds_from_buckets(ENDS, counts, p) for p in (10, 40, 41, 80, 81, 100)]
    first, second, third = (0.0, 1.0), (1.0, 2.0), (2.0, 5.0)
    right = [first, first, second, second, third, third]
    expect(got, right, at="4, 4, 2 values up to 1, 2, 5: percentiles 10, 40, 41, 80, 81, 100")


def test_19_7_empty_buckets_are_passed() -> None:
    """The bounds are those of a bucket that holds something."""
    expect(bounds_from_buckets(ENDS, [0, 0, 3, 0], 1), (2.0, 5.0), at="3 values from 2 to 5: p1")
    expect(bounds_from_buckets(ENDS, [1, 0, 1, 0], 99), (2.0, 5.0), at="1 and 1, a gap: p99")


def test_19_7_the_last_bucket_has_no_end() -> None:
    """All that is known is that it is above 5."""
    expect(bounds_from_buckets(ENDS, [9, 0, 0, 1], 99), (5.0, math.inf), at="1 of 10 above 5: p99")


def test_19_7_the_exact_one_lies_between() -> None:
    """The exact percentile of 200 latencies lies in the bucket that is named, for every percent."""
    rng = random.Random(1)
    values = [rng.lognormvariate(0.0, 1.0) for _ in range(200)]
    lows = [0.0, *ENDS[:-1]]
    counts = [sum(a < value <= b for value in values) for a, b in zip(lows, ENDS, strict=True)]
    for percent in range(1, 101):
        low, high = bounds_from_buckets(ENDS, counts, percent)
        exact = percentile(values, percent)
        at = f"percentile {percent}: {exact:.3f} lies above {low} and at most at {high}"
        expect(low < exact <= high, True, at=at)


def test_19_7_histograms_that_say_nothing() -> None:
    """No values, an end too many, and a percent that is none."""
    for ends, counts, percent in (
        (ENDS, [0, 0, 0, 0], 50), (ENDS, [1, 2, 3], 50), (ENDS, [1, 1, 1, 1], 0),
        (ENDS, [1, 1, 1, 1], 101),
    ):  # fmt: skip
        with pytest.raises(ValueError):
            bounds_from_buckets(ends, counts, percent)
