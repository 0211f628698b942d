"""Task 08.11: counting, and when it pays."""

from __future__ import annotations

import pytest

from labkit.testing import expect
from mini_vllm.spec_decode.metrics import SpecDecodingStats, expected_tokens_per_step, speedup


def test_08_11_accepted_tokens_are_a_prefix() -> None:
    """4 drafted, 2 accepted: positions 0 and 1 count."""
    stats = SpecDecodingStats.new(4)
    stats.observe_draft(4, 2)
    stats.observe_draft(3, 0)
    counts = [stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens]
    expect(counts, [2, 7, 2], at="drafts, draft tokens, accepted tokens")
    expect(stats.num_accepted_tokens_per_pos, [1, 1, 0, 0], at="accepted by position")


def test_08_11_mean_length_counts_the_targets_own_token() -> None:
    """3 accepted in 2 drafts: 1.5 each, and one more each."""
    stats = SpecDecodingStats.new(4)
    expect(stats.mean_acceptance_length, 1.0, at="no draft yet")
    stats.observe_draft(4, 3)
    stats.observe_draft(4, 0)
    expect(stats.mean_acceptance_length, 2.5, at="3 and 0 accepted")


@pytest.mark.parametrize(("a", "k", "tokens"), [(0.0, 4, 1.0), (0.5, 1, 1.5), (0.5, 3, 1.875)])
def test_08_11_expected_tokens(a: float, k: int, tokens: float) -> None:
    """1 + a + a^2 + ... + a^k."""
    expect(round(expected_tokens_per_step(a, k), 6), tokens, at=f"a = {a}, k = {k}")


def test_08_11_all_accepted_brings_k_plus_one() -> None:
    """The closed form divides by 1 - a; a = 1 must not."""
    expect(float(expected_tokens_per_step(1.0, 4)), 5.0, at="a = 1, k = 4")


def test_08_11_speedup_is_tokens_over_time() -> None:
    """k drafts and one verification; a verification of k + 1 tokens may cost more than one."""
    expect(round(speedup(0.5, 1, 0.5, 1.0), 6), 1.0, at="1.5 tokens in 0.5 + 1")
    expect(round(speedup(1.0, 3, 0.25, 1.0), 6), round(4 / 1.75, 6), at="4 tokens in 0.75 + 1")
    expect(round(speedup(0.5, 3, 0.1, 3.7), 6), round(1.875 / 4.0, 6), at="verification costs 3.7")
    expect(speedup(0.5, 0, 0.5, 1.0), 1.0, at="no drafts: nothing is drafted, and nothing is paid")
