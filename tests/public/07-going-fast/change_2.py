"""Change request 2: a third of padding at most."""

from __future__ import annotations

from labkit.testing import expect
from mini_vllm.worker.cuda_graphs import choose_bucket

BUCKETS = [1, 2, 4, 8, 16]


def test_change_2_too_much_padding() -> None:
    """3 of 8 rows would be padding."""
    expect(choose_bucket(5, BUCKETS), None, at="5 requests, buckets 1 2 4 8 16")


def test_change_2_little_padding() -> None:
    """2 of 8 rows."""
    expect(choose_bucket(6, BUCKETS), 8, at="6 requests, buckets 1 2 4 8 16")


def test_change_2_exactly_a_third() -> None:
    """1 of 3 rows is a third, and that is allowed."""
    expect(choose_bucket(2, [3]), 3, at="2 requests, bucket 3")
