"""Task 08.4: the distribution that replaces a rejected draft."""

from __future__ import annotations

from typing import Any

import torch

from labkit.testing import expect
from mini_vllm.sample.rejection_sampler import recovered_probs

DRAFT = torch.tensor([0])


def test_08_4_what_the_accepted_drafts_have_not_brought(lab: Any) -> None:
    """The example of the module's docstring: all that is missing of p is missing at C."""
    q, p = torch.tensor([[0.6, 0.3, 0.1]]), torch.tensor([[0.3, 0.3, 0.4]])
    expect(
        lab.listed(recovered_probs(DRAFT, q, p)),
        [[0.0, 0.0, 1.0]],
        at="q 0.6 0.3 0.1, p 0.3 0.3 0.4",
    )


def test_08_4_it_sums_to_one(lab: Any) -> None:
    """Two tokens are missing something: shared in the ratio of what is missing."""
    q, p = torch.tensor([[0.75, 0.25, 0.0]]), torch.tensor([[0.25, 0.375, 0.375]])
    expect(
        lab.listed(recovered_probs(DRAFT, q, p)), [[0.0, 0.25, 0.75]], at="p - q = -0.5 0.125 0.375"
    )


def test_08_4_a_chosen_draft_had_probability_one(lab: Any) -> None:
    """Without draft probabilities: p without the draft, made to sum to 1."""
    p = torch.tensor([[0.2, 0.6, 0.2], [0.2, 0.6, 0.2]])
    got = recovered_probs(torch.tensor([1, 0]), None, p)
    expect(
        lab.listed(got), [[0.5, 0.0, 0.5], [0.0, 0.75, 0.25]], at="drafts 1 and 0, p 0.2 0.6 0.2"
    )


def test_08_4_equal_distributions_give_zeros_not_nan(lab: Any) -> None:
    """p = q: nothing is ever rejected. The row is zeros; 0 / 0 would poison the batch."""
    p = torch.tensor([[0.5, 0.5], [0.0, 1.0]])
    expect(lab.listed(recovered_probs(torch.tensor([0, 1]), p, p)), [[0.0, 0.0]] * 2, at="p = q")
    expect(
        lab.listed(recovered_probs(torch.tensor([1]), None, p[1:])), [[0.0, 0.0]], at="p all on it"
    )


def test_08_4_the_targets_probabilities_stay(lab: Any) -> None:
    """p is used again after this, to judge: it must not change."""
    p = torch.tensor([[0.25, 0.75]])
    recovered_probs(torch.tensor([0]), None, p)
    recovered_probs(torch.tensor([0]), torch.tensor([[0.5, 0.5]]), p)
    expect(lab.listed(p), [[0.25, 0.75]], at="target_probs after both calls")


def test_08_4_however_little_is_left_it_sums_to_one(lab: Any) -> None:
    """p and q differ by a millionth: the residual is small, and its row sums to 1 all the same."""
    p = torch.tensor([[0.5, 0.5 - 2.0**-20, 2.0**-20]])
    q = torch.tensor([[0.5, 0.5, 0.0]])
    at = "p is larger than q by 2^-20 at token 2, and nowhere else"
    expect(lab.listed(recovered_probs(torch.tensor([1]), q, p)), [[0.0, 0.0, 1.0]], at=at)


def test_08_4_next_to_nothing_is_not_nothing(lab: Any) -> None:
    """Only p allows token 2, with 2^-110, which float32 knows: it is all that is missing."""
    p, q = torch.tensor([[1.0, 0.0, 2.0**-110]]), torch.tensor([[1.0, 0.0, 0.0]])
    expect(lab.listed(recovered_probs(DRAFT, q, p)), [[0.0, 0.0, 1.0]], at="p - q = 0 0 2^-110")
    expect(lab.listed(recovered_probs(DRAFT, None, p)), [[0.0, 0.0, 1.0]], at="token 0 was chosen")
