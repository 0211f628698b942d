"""Change request 1: at most twelve graphs."""

from __future__ import annotations

from labkit.testing import expect
from mini_vllm.worker.cuda_graphs import make_buckets


def test_change_1_a_dozen() -> None:
    """200 rows."""
    sizes = [1, 2, 4, 8, 32, 56, 80, 104, 128, 152, 176, 200]
    expect(make_buckets(200), sizes, at="max_num_reqs 200")


def test_change_1_fewer_where_steps_meet() -> None:
    """64 rows: a step is 7, and some multiples of 8 come twice."""
    expect(make_buckets(64), [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64], at="max_num_reqs 64")


def test_change_1_small_engines() -> None:
    """5 rows."""
    expect(make_buckets(5), [1, 2, 4, 5], at="max_num_reqs 5")
