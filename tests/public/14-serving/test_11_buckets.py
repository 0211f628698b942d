"""Task 14.11: what is left of a percentile in a histogram."""

from __future__ import annotations

import math

import pytest

from labkit.testing import expect
from mini_vllm.observability.metrics import build_1_2_5_buckets, percentile_from_buckets

BOUNDS = [1.0, 2.0, 4.0, math.inf]


def test_14_11_bounds() -> None:
    """1, 2, 5, 10, ... up to the limit, and the limit itself if it is one of them."""
    for limit, expected in (
        (1, [1]),
        (4, [1, 2]),
        (100, [1, 2, 5, 10, 20, 50, 100]),
        (499, [1, 2, 5, 10, 20, 50, 100, 200]),
    ):
        expect(build_1_2_5_buckets(limit), expected, at=f"max_value {limit}")


@pytest.mark.parametrize(
    ("counts", "quantile", "expected"),
    [
        ([4.0, 8.0, 8.0, 10.0], 0.2, 0.5),
        ([4.0, 8.0, 8.0, 10.0], 0.6, 1.5),
        ([4.0, 8.0, 8.0, 10.0], 0.8, 2.0),
        ([0.0, 0.0, 10.0, 10.0], 0.5, 3.0),
        ([0.0, 2.0, 2.0, 2.0], 1.0, 2.0),
    ],
)
def test_14_11_along_a_line(counts: list[float], quantile: float, expected: float) -> None:
    """Inside the first bucket that reaches the rank, in proportion."""
    expect(
        percentile_from_buckets(BOUNDS, counts, quantile),
        expected,
        at=f"quantile {quantile}",
        bounds=BOUNDS,
        counts=counts,
    )


def test_14_11_beyond_the_last_bound() -> None:
    """In the infinite bucket only its lower end is known."""
    expect(
        percentile_from_buckets(BOUNDS, [4.0, 8.0, 8.0, 10.0], 0.99), 4.0, at="two of ten above 4"
    )


def test_14_11_nothing_was_seen() -> None:
    """Without observations there is no percentile."""
    expect(percentile_from_buckets(BOUNDS, [0.0] * 4, 0.5), None, at="all counts 0")
    expect(percentile_from_buckets([], [], 0.5), None, at="no buckets")


def test_14_11_quantile_zero() -> None:
    """An empty first bucket is no reason to divide by 0."""
    expect(percentile_from_buckets(BOUNDS, [0.0, 5.0, 5.0, 5.0], 0.0), 0.0, at="quantile 0")
