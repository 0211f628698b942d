"""Change request 1: at most 256 tokens a trip."""

from __future__ import annotations

from labkit.testing import expect
from mini_vllm.policies.fleet import Prices, tokens_to_load


def prices(token: float) -> Prices:
    return Prices(5.0, token, 0.0, 10.0, 1.0, 1.0, 0.5)


def test_change_1_two_trips() -> None:
    """258 tokens: two trips, and no longer worth it."""
    expect(tokens_to_load(prices(1.05), 9, 0, 258), 0, at="258 tokens: 278 s, or 270.9 s")


def test_change_1_one_trip() -> None:
    """256 tokens fit into one."""
    expect(tokens_to_load(prices(1.05), 9, 0, 256), 256, at="256 tokens: 266 s, or 268.8 s")


def test_change_1_many_trips_pay_too() -> None:
    """600 tokens beyond the cache: three trips."""
    expect(tokens_to_load(prices(1.1), 9, 64, 664), 600, at="600 tokens: 630 s, or 660 s")
