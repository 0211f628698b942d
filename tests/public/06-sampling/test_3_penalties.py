"""Task 06.3: allowed tokens, min_tokens, bias, penalties."""

from __future__ import annotations

from typing import Any

import torch

from labkit.inside.cost import elements
from labkit.testing import expect
from mini_vllm.sample.logits_processors import (
    apply_allowed_token_ids,
    apply_logit_bias,
    apply_min_tokens,
    apply_penalties,
)


def penalised(
    lab: Any,
    logits: list[float],
    prompt: list[int],
    output: list[int],
    repetition: float = 1.0,
    presence: float = 0.0,
    frequency: float = 0.0,
) -> Any:
    """The logits of one row after `apply_penalties`, as a list."""
    counts = torch.bincount(torch.tensor(output, dtype=torch.int64), minlength=len(logits))
    result = apply_penalties(
        torch.tensor([logits]),
        torch.zeros(len(prompt + output), dtype=torch.int64),
        torch.tensor(prompt + output),
        counts.float().unsqueeze(0),
        *(torch.tensor([value]) for value in (repetition, presence, frequency)),
    )
    return lab.listed(result)[0]


def test_06_3_only_allowed_tokens_are_left(lab: Any) -> None:
    """Allowed tokens: the others are ruled out; a row that is all True is off."""
    allowed = torch.tensor([[True, False, True], [True, True, True]])
    result = apply_allowed_token_ids(torch.tensor([[1.0, 2.0, 3.0]] * 2), allowed)
    expect(lab.listed(result), [[1.0, -torch.inf, 3.0], [1.0, 2.0, 3.0]], at="row 0 allows 0 and 2")


def test_06_3_stop_tokens_are_banned_while_the_output_is_short(lab: Any) -> None:
    """min_tokens: with until 2, the first and the second token cannot be the stop token."""
    rows, tokens, until = torch.tensor([0]), torch.tensor([2]), torch.tensor([2])
    for length, expected in ((0, [0, 1]), (1, [0, 1]), (2, [0, 1, 2]), (3, [0, 1, 2])):
        result = apply_min_tokens(torch.zeros(1, 3), rows, tokens, until, torch.tensor([length]))
        at = f"token 2 is banned until 2 tokens are there; there are {length}"
        expect(lab.kept(result), [expected], at=at)


def test_06_3_each_entry_bans_in_its_own_row(lab: Any) -> None:
    """min_tokens: entries name rows; a row may have several, one or none."""
    rows, tokens, until = torch.tensor([2, 0, 0]), torch.tensor([0, 1, 2]), torch.tensor([8, 5, 5])
    lengths = torch.tensor([0, 0, 7])
    result = apply_min_tokens(torch.zeros(3, 3), rows, tokens, until, lengths)
    at = "row 0 bans tokens 1 and 2, row 1 nothing, row 2 token 0"
    expect(lab.kept(result), [[0], [0, 1, 2], [1, 2]], at=at)


def test_06_3_bias_is_added_where_it_belongs(lab: Any) -> None:
    """Bias: each value is added to its token in its row."""
    rows, tokens = torch.tensor([0, 1, 1]), torch.tensor([2, 0, 1])
    result = apply_logit_bias(torch.ones(2, 3), rows, tokens, torch.tensor([1.0, 2.0, -3.0]))
    expect(lab.listed(result), [[1.0, 1.0, 2.0], [3.0, -2.0, 1.0]], at="all logits were 1")


def test_06_3_bias_brings_nothing_back(lab: Any) -> None:
    """Bias: a token that is ruled out stays so."""
    logits = torch.tensor([[0.0, -torch.inf]])
    result = apply_logit_bias(logits, torch.tensor([0]), torch.tensor([1]), torch.tensor([100.0]))
    expect(lab.listed(result), [[0.0, -torch.inf]], at="a bias of 100 on a token that is ruled out")


def test_06_3_repetition_lowers_positive_and_negative_logits(lab: Any) -> None:
    """Repetition penalty: positive logits are divided, negative ones multiplied."""
    yours = penalised(lab, [2.0, -2.0, 3.0, 0.0], [0, 1], [3], repetition=2.0)
    at = "repetition 2; tokens 0 and 1 are in the prompt, 3 in the output, 2 is unused"
    expect(yours, [1.0, -4.0, 3.0, 0.0], at=at, logits=[2.0, -2.0, 3.0, 0.0])


def test_06_3_frequency_counts_and_presence_does_not(lab: Any) -> None:
    """Frequency is charged for every occurrence, presence once."""
    yours = penalised(lab, [5.0, 5.0, 5.0], [], [0, 0, 0, 1], presence=1.0, frequency=0.5)
    at = "presence 1, frequency 0.5; token 0 is in the output three times, token 1 once"
    expect(yours, [2.5, 3.5, 5.0], at=at)


def test_06_3_only_repetition_looks_at_the_prompt(lab: Any) -> None:
    """Presence and frequency ignore the prompt."""
    at = "token 0 is in the prompt only"
    expect(penalised(lab, [4.0, 4.0], [0], [], presence=1.0, frequency=1.0), [4.0, 4.0], at=at)
    expect(penalised(lab, [4.0, 4.0], [0], [], repetition=2.0), [2.0, 4.0], at=at)


def test_06_3_a_pair_that_occurs_twice_is_charged_once(lab: Any) -> None:
    """A token that stands in prompt and output, or several times, goes through the steps once."""
    yours = penalised(lab, [8.0, 8.0], [0, 0], [0, 0], repetition=2.0, presence=1.0)
    expect(yours, [3.0, 8.0], at="token 0 stands four times in the list; 8 / 2 - 1")


def test_06_3_repetition_comes_before_the_other_two(lab: Any) -> None:
    """First divide, then subtract."""
    yours = penalised(lab, [6.0, 6.0], [], [0], repetition=2.0, presence=1.0, frequency=1.0)
    expect(yours, [1.0, 6.0], at="logit 6, repetition 2, presence 1, frequency 1, one occurrence")


def test_06_3_rows_have_penalties_of_their_own(lab: Any) -> None:
    """Each row has its own tokens and its own values."""
    rows, tokens = torch.tensor([0, 1, 1, 2]), torch.tensor([1, 0, 1, 0])
    counts = torch.tensor([[0.0, 1.0], [2.0, 1.0], [1.0, 0.0]])
    repetition, presence = torch.tensor([2.0, 1.0, 1.0]), torch.tensor([0.0, 1.0, 0.0])
    frequency = torch.tensor([0.0, 1.0, 0.0])
    args = (torch.full((3, 2), 4.0), rows, tokens, counts, repetition, presence, frequency)
    at = "row 0: repetition 2; row 1: presence 1 and frequency 1; row 2: everything off"
    expect(lab.listed(apply_penalties(*args)), [[4.0, 2.0], [1.0, 2.0], [4.0, 4.0]], at=at)
    wide = torch.zeros(3, 10_000)
    cost = elements(apply_penalties, wide, rows, tokens, wide, repetition, presence, frequency)
    at = "each of 30,000 logits is copied once, and four are used"
    assert cost < 3 * wide.numel(), f"{at}; yours touches {cost:,} numbers"


def test_06_3_the_input_is_not_changed(lab: Any) -> None:
    """The given logits stay as they are."""
    logits, one = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([1])
    zero, value = torch.tensor([0]), torch.tensor([2.0])
    lab.expect_untouched(apply_min_tokens, logits, zero, one, one, zero)
    lab.expect_untouched(apply_logit_bias, logits, zero, one, value)
    counts = torch.ones(1, 3)
    lab.expect_untouched(apply_penalties, logits, zero, one, counts, value, value, value)
    allowed = torch.tensor([[True, False, True]])
    lab.expect_untouched(apply_allowed_token_ids, logits, allowed)
