"""Task 07.1: which batch sizes get a graph, and which graph a step uses."""

from __future__ import annotations

import pytest

from labkit.testing import expect
from mini_vllm.worker.cuda_graphs import LARGEST_BUCKET, choose_bucket, make_buckets


@pytest.mark.parametrize(
    ("limit", "buckets"),
    [
        (1, [1]),
        (2, [1, 2]),
        (5, [1, 2, 4, 5]),
        (8, [1, 2, 4, 8]),
        (20, [1, 2, 4, 8, 16, 20]),
        (24, [1, 2, 4, 8, 16, 24]),
    ],
)
def test_07_1_buckets_of_a_small_engine(limit: int, buckets: list[int]) -> None:
    """1, 2, 4, then every 8, and the limit itself as the last one, once."""
    expect(make_buckets(limit), buckets, at=f"make_buckets({limit})")


def test_07_1_large_batches_have_wider_buckets() -> None:
    """From 256 on every 16: a few rows of padding are little beside 256."""
    buckets = make_buckets(300)
    expect(buckets[3:6], [8, 16, 24], at="make_buckets(300), the fourth to the sixth")
    expect(buckets[-5:], [248, 256, 272, 288, 300], at="make_buckets(300), the last five")


def test_07_1_no_bucket_above_the_largest() -> None:
    """Beyond LARGEST_BUCKET a step is long enough without a graph."""
    buckets = make_buckets(4000)
    expect(buckets[-2:], [496, 512], at="make_buckets(4000), the last two", LARGEST=LARGEST_BUCKET)
    expect(make_buckets(LARGEST_BUCKET), buckets, at="make_buckets(512) against make_buckets(4000)")


@pytest.mark.parametrize(("num_reqs", "bucket"), [(1, 1), (2, 2), (3, 4), (5, 8), (8, 8)])
def test_07_1_smallest_that_holds_the_step(num_reqs: int, bucket: int) -> None:
    """A step of exactly a bucket's size needs no padding; the next larger one needs the least."""
    expect(choose_bucket(num_reqs, [1, 2, 4, 8]), bucket, at=f"{num_reqs} requests, 1 2 4 8")


def test_07_1_too_large_for_every_bucket() -> None:
    """None means: launch this step kernel by kernel."""
    expect(choose_bucket(9, [1, 2, 4, 8]), None, at="9 requests, buckets 1 2 4 8")
    expect(choose_bucket(1, []), None, at="1 request, no buckets")
