"""Change request 1, for every size."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from mini_vllm.worker.cuda_graphs import LARGEST_BUCKET, make_buckets


def test_change_1_every_engine() -> None:
    for rows in range(1, 700):
        largest = min(rows, LARGEST_BUCKET)
        sizes = {1, 2, 4, 8, largest}
        for step in range(1, 8):
            sizes.add(ceil((8 + Fraction(step * (largest - 8), 8)) / 8) * 8)
        expected = sorted(size for size in sizes if 0 < size <= largest)
        assert make_buckets(rows) == expected, rows
        assert len(expected) <= 12
