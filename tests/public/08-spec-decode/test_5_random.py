"""Task 08.5: accept by chance, and leave the distribution exact."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from labkit.testing import expect
from mini_vllm.sample.rejection_sampler import (
    PLACEHOLDER_TOKEN_ID as GAP,
)
from mini_vllm.sample.rejection_sampler import (
    recovered_probs,
    rejection_random_sample,
)


def judge(p: float, q: float | None, u: float) -> Any:
    """One draft, token 0, of probability p and q; token 1 would replace it, 5 is the bonus."""
    probs = None if q is None else torch.tensor([[q, 1 - q]])
    target = torch.tensor([[p, 1 - p]])
    return rejection_random_sample(
        torch.tensor([0]),
        [1],
        probs,
        target,
        torch.tensor([5]),
        torch.tensor([1]),
        torch.tensor([u]),
    )[0].tolist()


def test_08_5_accepted_with_probability_p_over_q() -> None:
    """p 0.25, q 0.5: half of the numbers accept, and those below the threshold."""
    expect(judge(0.25, 0.5, 0.49), [0, 5], at="u = 0.49 < 0.25 / 0.5")
    expect(judge(0.25, 0.5, 0.51), [1, GAP], at="u = 0.51")


def test_08_5_always_where_the_target_likes_it_more() -> None:
    """p above q: the quotient is above 1, every number accepts."""
    expect(judge(0.75, 0.5, 0.999), [0, 5], at="p 0.75, q 0.5, u 0.999")


def test_08_5_never_where_the_target_excludes_it() -> None:
    """p = 0 is rejected for every u, also for u = 0."""
    expect(judge(0.0, 0.5, 0.0), [1, GAP], at="p 0, q 0.5, u 0")


def test_08_5_a_draft_that_cannot_have_been_drawn_is_rejected() -> None:
    """q = 0 divides nothing and accepts nothing."""
    expect(judge(0.5, 0.0, 0.1), [1, GAP], at="p 0.5, q 0, u 0.1")


def test_08_5_without_draft_probabilities_q_is_one() -> None:
    """A chosen draft: accepted with probability p."""
    expect(judge(0.25, None, 0.24), [0, 5], at="p 0.25, u 0.24")
    expect(judge(0.25, None, 0.26), [1, GAP], at="p 0.25, u 0.26")


def test_08_5_a_ragged_batch() -> None:
    """2, 0 and 2 drafts; in the last request the first is rejected and the second not read."""
    target = torch.tensor([[0.5, 0.5]] * 4)
    output = rejection_random_sample(
        torch.tensor([0, 1, 0, 1]), [2, 0, 2], None, target, torch.tensor([10, 11, 12]),
        torch.tensor([6, 7, 8, 9]), torch.tensor([0.1, 0.2, 0.9, 0.1]),
    )  # fmt: skip
    expect(
        output.tolist(), [[0, 1, 10], [11, GAP, GAP], [8, GAP, GAP]], at="u 0.1 0.2, none, 0.9 0.1"
    )


def test_08_5_each_draft_has_its_own_row() -> None:
    """Row i of p and q judges draft i."""
    p, q = torch.tensor([[0.9, 0.1], [0.1, 0.9]]), torch.tensor([[0.5, 0.5], [0.5, 0.5]])
    output = rejection_random_sample(
        torch.tensor([0, 0]), [2], q, p, torch.tensor([5]), torch.tensor([1, 1]),
        torch.tensor([0.5, 0.5]),
    )  # fmt: skip
    expect(output.tolist(), [[0, 1, GAP]], at="p of the drafts 0.9 and 0.1, q 0.5, u 0.5")


def test_08_5_the_law_is_exactly_the_targets(lab: Any) -> None:
    """Sum over all drafts, numbers and replacements: what comes out has the law p, to 1e-6."""
    q, p = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.25, 0.25, 0.5])
    midpoints = [(place + 0.5) / 12 for place in range(12)]
    law = torch.zeros(3, dtype=torch.float64)
    for x, u, r in itertools.product(range(3), midpoints, range(3)):
        draft, rows = torch.tensor([x]), (q[None], p[None])
        chance = float(recovered_probs(draft, *rows)[0, r])
        token = rejection_random_sample(
            draft, [1], *rows, torch.tensor([0]), torch.tensor([r]), torch.tensor([u])
        )[0, 0]
        law[token] += float(q[x]) / 12 * chance
    at = "3 drafts x 12 numbers x 3 replacements, weighted; needs task 08.4 as well"
    expect(lab.listed(law), [0.25, 0.25, 0.5], at=at, q=[0.5, 0.25, 0.25])
