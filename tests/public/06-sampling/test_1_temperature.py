"""Task 06.1: temperature, min-p and top-k."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from labkit.testing import expect
from mini_vllm.sample.logits_processors import apply_min_p, apply_temperature, apply_top_k


def test_06_1_each_row_is_divided_by_its_own_temperature(lab: Any) -> None:
    """Temperature divides the logits of its row."""
    logits = torch.tensor([[1.0, 2.0, -4.0], [1.0, 2.0, -4.0], [1.0, 2.0, -4.0]])
    result = apply_temperature(logits, torch.tensor([0.5, 1.0, 2.0]))
    expected = [[2.0, 4.0, -8.0], [1.0, 2.0, -4.0], [0.5, 1.0, -2.0]]
    expect(lab.listed(result), expected, at="temperatures 0.5, 1 and 2", logits=logits[0].tolist())


def test_06_1_a_greedy_row_stays_as_it_is(lab: Any) -> None:
    """Temperature 0 marks a greedy row: no division by zero, also beside other rows."""
    logits = torch.tensor([[0.0, 2.0, -4.0], [0.0, 2.0, -4.0]])
    result = apply_temperature(logits, torch.tensor([0.0, 0.5]))
    at = "row 0 has temperature 0, row 1 has 0.5; one logit is 0, and 0 / 0 is NaN"
    expect(lab.listed(result), [[0.0, 2.0, -4.0], [0.0, 4.0, -8.0]], at=at)


def test_06_1_what_is_ruled_out_stays_out(lab: Any) -> None:
    """A logit of -inf stays -inf at any temperature."""
    logits = lab.logits_of([0.5, 0.0, 0.5], [0.5, 0.0, 0.5], [0.5, 0.0, 0.5])
    result = apply_temperature(logits, torch.tensor([0.0, 0.1, 100.0]))
    expect(lab.kept(result), [[0, 2]] * 3, at="token 1 was ruled out before")


def test_06_1_min_p_is_a_share_of_the_most_probable_token(lab: Any) -> None:
    """Min-p: a token stays if it is at least min_p times as probable as the best one."""
    probabilities = [0.5, 0.3, 0.2]
    result = apply_min_p(lab.logits_of(*[probabilities] * 3), torch.tensor([0.35, 0.5, 0.7]))
    at = "limits 0.35, 0.5 and 0.7 of the largest probability, 0.5"
    expect(lab.kept(result), [[0, 1, 2], [0, 1], [0]], at=at, probabilities=probabilities)


def test_06_1_min_p_0_is_off_and_1_keeps_the_best(lab: Any) -> None:
    """Min-p: 0 rules nothing out, 1 rules out all but the best."""
    result = apply_min_p(lab.logits_of(*[[0.9, 1e-30, 0.1]] * 2), torch.tensor([0.0, 1.0]))
    expect(lab.kept(result), [[0, 1, 2], [0]], at="probabilities 0.9, 1e-30, 0.1; min_p 0 and 1")


def test_06_1_top_k_keeps_the_largest_of_each_row(lab: Any) -> None:
    """Top-k: each row keeps its own k largest logits, in their places."""
    logits = torch.tensor([[3.0, 1.0, 2.0, 0.0]] * 3)
    result = apply_top_k(logits, torch.tensor([1, 2, 3]))
    at = "k = 1, 2 and 3 of the logits 3, 1, 2, 0"
    expect(lab.kept(result), [[0], [0, 2], [0, 1, 2]], at=at)
    expect(lab.listed(result[1]), [3.0, -torch.inf, 2.0, -torch.inf], at="the row with k = 2")


def test_06_1_top_k_0_and_more_than_the_vocabulary_are_off(lab: Any) -> None:
    """Top-k: 0 is off, and so is any k of at least the vocabulary's size."""
    logits = torch.tensor([[3.0, 1.0, 2.0]] * 4)
    result = apply_top_k(logits, torch.tensor([0, 1, 3, 99]))
    expect(lab.kept(result), [[0, 1, 2], [0], [0, 1, 2], [0, 1, 2]], at="k = 0, 1, 3 and 99; V = 3")
    off = apply_top_k(logits[:2], torch.tensor([0, 0]))
    expect(lab.kept(off), [[0, 1, 2]] * 2, at="k = 0 in every row")


def test_06_1_top_k_keeps_all_that_tie_with_the_last(lab: Any) -> None:
    """Top-k: a tie with the k-th largest stays, whatever the order of a sort."""
    logits = torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0]])
    result = apply_top_k(logits, torch.tensor([2]))
    expect(lab.kept(result), [[1, 2, 3]], at="k = 2, and three tokens have the largest logit")


@pytest.mark.parametrize("function", [apply_temperature, apply_min_p, apply_top_k])
def test_06_1_the_input_is_not_changed(lab: Any, function: Any) -> None:
    """The given logits stay as they are: logprobs are computed from them later."""
    value = torch.tensor([2]) if function is apply_top_k else torch.tensor([0.5])
    lab.expect_untouched(function, lab.logits_of([0.6, 0.3, 0.1]), value)
