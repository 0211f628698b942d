"""Change request 2, for all small cases."""

from __future__ import annotations

from fractions import Fraction

from mini_vllm.worker.cuda_graphs import choose_bucket


def test_change_2_every_step() -> None:
    for buckets in ([1, 2, 4, 8, 16], [3, 6, 12], [1], [30]):
        for number in range(1, 34):
            fits = [b for b in buckets if b >= number]
            expected = fits[0] if fits else None
            if expected and Fraction(expected - number, expected) > Fraction(1, 3):
                expected = None
            assert choose_bucket(number, buckets) == expected
