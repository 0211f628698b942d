"""Task 15.1: from how many tokens on loading beats computing."""

from __future__ import annotations

import math

import pytest

from labkit.testing import expect
from mini_vllm.kv_transfer.economics import break_even_tokens


def test_15_1_the_lines_meet() -> None:
    """A prompt of exactly this length takes as long to carry as to compute."""
    yours = break_even_tokens(1000, 4e6, 1000, fixed_seconds=0.03)
    assert yours == pytest.approx(40), "40 ms to compute; 30 ms and 40 times 0.25 ms to carry"


def test_15_1_a_slow_link_never_pays() -> None:
    """A token that is not carried faster than it is computed gains nothing."""
    at = "1000 bytes a token, 1000 tokens/s"
    expect(break_even_tokens(1000, 0.5e6, 1000, 0.03), math.inf, at=f"{at}, 0.5 MB/s")
    expect(break_even_tokens(1000, 1e6, 1000, 0.03), math.inf, at=f"{at}, 1 MB/s: just as fast")


def test_15_1_without_a_fixed_price_it_pays_at_once() -> None:
    """If a trip costs nothing of its own, the first token pays."""
    expect(break_even_tokens(1000, 4e6, 1000), 0.0, at="no fixed price")
