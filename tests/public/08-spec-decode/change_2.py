"""Change request 2: a rate for each position."""

from __future__ import annotations

import pytest

from labkit.testing import expect
from mini_vllm.spec_decode.metrics import expected_tokens_per_step


def test_change_2_a_rate_for_each() -> None:
    """1 + 0.8 + 0.8 x 0.5."""
    expect(round(expected_tokens_per_step([0.8, 0.5], 2), 6), 2.2, at="[0.8, 0.5], k 2")


def test_change_2_one_number_as_before() -> None:
    """1 + 0.5 + 0.25."""
    expect(expected_tokens_per_step(0.5, 2), 1.75, at="0.5, k 2")


def test_change_2_lengths_must_agree() -> None:
    """Three rates for two drafts."""
    with pytest.raises(ValueError, match=r"3.*2"):
        expected_tokens_per_step([0.8, 0.5, 0.1], 2)
