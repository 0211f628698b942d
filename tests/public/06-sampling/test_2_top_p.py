"""Task 06.2: top-p."""

from __future__ import annotations

from typing import Any

import torch

from labkit.inside.cost import elements
from labkit.testing import expect
from mini_vllm.sample.logits_processors import apply_top_k_top_p, apply_top_p

FOUR = [0.5, 0.3, 0.15, 0.05]


def test_06_2_the_token_that_crosses_the_limit_stays(lab: Any) -> None:
    """Top-p: the smallest set that reaches the mass, so the crossing token is in it."""
    result = apply_top_p(lab.logits_of(*[FOUR] * 3), torch.tensor([0.4, 0.6, 0.81]))
    expect(
        lab.kept(result), [[0], [0, 1], [0, 1, 2]], at="top_p 0.4, 0.6, 0.81", probabilities=FOUR
    )


def test_06_2_the_order_of_the_tokens_does_not_matter(lab: Any) -> None:
    """Top-p: tokens keep their places; only their probabilities are put in order."""
    shuffled = [0.05, 0.5, 0.15, 0.3]
    result = apply_top_p(lab.logits_of(shuffled), torch.tensor([0.6]))
    expect(lab.kept(result), [[1, 3]], at="top_p 0.6", probabilities=shuffled)


def test_06_2_one_token_always_stays(lab: Any) -> None:
    """Top-p: however small the limit, the most probable token stays."""
    result = apply_top_p(lab.logits_of(FOUR), torch.tensor([1e-9]))
    expect(lab.kept(result), [[0]], at="top_p 0.000000001", probabilities=FOUR)


def test_06_2_one_is_off(lab: Any) -> None:
    """Top-p: 1 rules nothing out, although a sum in float32 reaches 1 too early."""
    rare = [0.5, 0.5 - 1e-9, 1e-9, 1e-12]
    result = apply_top_p(lab.logits_of(rare, rare), torch.tensor([1.0, 0.4]))
    expect(
        lab.kept(result)[0], [0, 1, 2, 3], at="top_p 1 beside a row with 0.4", probabilities=rare
    )


def test_06_2_ties_with_the_last_one_stay(lab: Any) -> None:
    """Top-p: tokens tied with the last one kept stay too."""
    logits = torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0]])
    result = apply_top_p(logits, torch.tensor([0.3]))
    expect(lab.kept(result), [[1, 2, 3]], at="top_p 0.3; three tokens share the first place")


def test_06_2_a_flat_distribution_keeps_many(lab: Any) -> None:
    """Top-p: of 1,000 nearly equal tokens 0.9 keeps 900, whatever shortcut you take."""
    logits = torch.linspace(0, 1e-3, 1000).unsqueeze(0)
    number = len(lab.kept(apply_top_p(logits, torch.tensor([0.9])))[0])
    assert 899 <= number <= 901, f"{number} of 1,000 nearly equal tokens are left; about 900 should"
    peaked = torch.linspace(0, 400, 10_000).unsqueeze(0)
    cost = elements(apply_top_p, peaked, torch.tensor([0.5])) / 10_000
    assert cost < 12, f"each of 10,000 logits is touched {cost:.0f} times, though 17 tokens stay"


def test_06_2_what_is_ruled_out_has_no_mass(lab: Any) -> None:
    """Top-p: tokens of logit -inf count nothing, and stay out."""
    left = [0.0, 0.6, 0.0, 0.4]
    result = apply_top_p(lab.logits_of(left, left), torch.tensor([0.5, 0.9]))
    expect(lab.kept(result), [[1], [1, 3]], at="top_p 0.5 and 0.9", probabilities=left)


def test_06_2_top_p_counts_what_top_k_has_left(lab: Any) -> None:
    """Top-k comes first; top-p then sees probabilities that sum to 1 again."""
    four = [0.4, 0.3, 0.2, 0.1]
    logits, two, half = lab.logits_of(four), torch.tensor([2]), torch.tensor([0.5])
    at = "top_k 2, top_p 0.5: of the two that are left, the first has 0.4 / 0.7"
    expect(lab.kept(apply_top_k_top_p(logits, two, half)), [[0]], at=at, probabilities=four)


def test_06_2_an_unused_filter_is_none(lab: Any) -> None:
    """None means that no row uses the filter: it costs nothing."""
    logits, two, half = lab.logits_of([0.4, 0.3, 0.2, 0.1]), torch.tensor([2]), torch.tensor([0.5])
    expect(lab.kept(apply_top_k_top_p(logits, two, None)), [[0, 1]], at="top_k 2, top_p None")
    expect(lab.kept(apply_top_k_top_p(logits, None, half)), [[0, 1]], at="top_k None, top_p 0.5")
    expect(lab.kept(apply_top_k_top_p(logits, None, None)), [[0, 1, 2, 3]], at="None, None")


def test_06_2_the_input_is_not_changed(lab: Any) -> None:
    """The given logits stay as they are."""
    lab.expect_untouched(apply_top_p, lab.logits_of(FOUR), torch.tensor([0.6]))
