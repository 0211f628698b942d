"""Counters of acceptance, and the arithmetic of when it pays."""

import pytest

from mini_vllm.spec_decode.metrics import (
    SpecDecodingStats,
    expected_tokens_per_step,
    metrics_of,
    speedup,
)


def test_positions_count_prefixes() -> None:
    stats = SpecDecodingStats.new(4)
    stats.observe_draft(4, 2)
    stats.observe_draft(2, 0)
    assert (stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens) == (2, 6, 2)
    assert stats.num_accepted_tokens_per_pos == [1, 1, 0, 0]
    assert stats.acceptance_rates == [0.5, 0.5, 0, 0]
    assert stats.mean_acceptance_length == 2.0
    assert SpecDecodingStats.new(3).mean_acceptance_length == 1.0


def test_names_are_vllms() -> None:
    metrics = {metric.name: metric for metric in metrics_of(SpecDecodingStats.new(2))}
    prefix = "vllm:spec_decode_num_"
    assert {n.removeprefix(prefix) for n in metrics} == {
        "drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos"
    }  # fmt: skip
    assert metrics[prefix + "drafts"].value == 0
    assert metrics[prefix + "accepted_tokens_per_pos"].values == [0, 0]


@pytest.mark.parametrize("a", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("k", [1, 4])
def test_expected_tokens_have_the_closed_form(a: float, k: int) -> None:
    assert expected_tokens_per_step(a, k) == pytest.approx((1 - a ** (k + 1)) / (1 - a))


def test_what_is_always_accepted_brings_all() -> None:
    assert expected_tokens_per_step(1.0, 5) == 6


def test_speedup_pays_for_drafts_and_for_verification() -> None:
    assert speedup(0.0, 4, 0.0, 1.0) == 1.0
    assert speedup(0.8, 4, 0.25, 1.0) == pytest.approx(3.3616 / 2)
    assert speedup(0.8, 4, 0.25, 3.7) == pytest.approx(3.3616 / 4.7)
