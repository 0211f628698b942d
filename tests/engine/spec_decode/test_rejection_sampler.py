"""The exact law of what verification says, by enumeration; and each piece on its own.

With probabilities in quarters the threshold p / q is a multiple of 1/12, so 12 midpoints of the
random number integrate acceptance exactly. No statistics are needed, and no bias can hide.
"""

import itertools
import random

import pytest
import torch
from torch import Tensor

from mini_vllm.sample.metadata import make_sampling_metadata
from mini_vllm.sample.rejection_sampler import (
    ACCEPT,
    DRAFT,
    PLACEHOLDER_TOKEN_ID,
    RECOVER,
    RejectionSampler,
    recovered_probs,
    rejection_greedy_sample,
    rejection_random_sample,
    stream_numbers,
)
from mini_vllm.sample.sampler import NO_TOKEN_LEFT, Sampler, uniform_numbers
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.spec_decode.metadata import expand_to_rows

MIDPOINTS = [(place + 0.5) / 12 for place in range(12)]


def quarters(draw: random.Random, size: int) -> Tensor:
    counts = [0] * size
    for _ in range(4):
        counts[draw.randrange(size)] += 1
    return torch.tensor(counts) / 4


def law_of_two_positions(
    p1: Tensor, p2: Tensor, q1: Tensor, q2: Tensor, with_probs: bool
) -> Tensor:
    """Joint law of two tokens, ``[V, V]``, summed over drafts, numbers and replacements.

    ``p2`` and ``q2`` are ``[V, V]``: given the first token. A text that ends after a rejection
    goes on in the next step, from p2.
    """
    size = len(p1)
    law = torch.zeros(size, size, dtype=torch.float64)
    for x1, x2 in itertools.product(range(size), repeat=2):
        weight = float(q1[x1] * q2[x1, x2])
        if weight == 0:
            continue
        drafts = torch.tensor([x1, x2])
        p = torch.stack((p1, p2[x1]))
        q = torch.stack((q1, q2[x1])) if with_probs else None
        replacements = recovered_probs(drafts, q, p)
        for u in itertools.product(MIDPOINTS, repeat=2):
            for r1, r2 in itertools.product(range(size), repeat=2):
                odds = [float(row[r]) if row.sum() else 1 / size
                        for row, r in zip(replacements, (r1, r2), strict=True)]  # fmt: skip
                if not odds[0] or not odds[1]:
                    continue
                tokens = rejection_random_sample(
                    drafts, [2], q, p, torch.tensor([0]), torch.tensor([r1, r2]), torch.tensor(u)
                )[0].tolist()
                share = weight * odds[0] * odds[1] / 144
                if tokens[1] == PLACEHOLDER_TOKEN_ID:
                    law[tokens[0]] += share * p2[tokens[0]].double()
                else:
                    law[tokens[0], tokens[1]] += share
    return law


@pytest.mark.parametrize("seed", range(3))
def test_drawn_drafts_leave_the_law_exact(seed: int) -> None:
    draw = random.Random(seed)
    size = 3
    p1, q1 = quarters(draw, size), quarters(draw, size)
    p2 = torch.stack([quarters(draw, size) for _ in range(size)])
    q2 = torch.stack([quarters(draw, size) for _ in range(size)])
    law = law_of_two_positions(p1, p2, q1, q2, with_probs=True)
    assert (law - (p1[:, None] * p2).double()).abs().max() < 1e-6


def test_chosen_drafts_leave_the_law_exact() -> None:
    draw = random.Random(7)
    p1, p2 = quarters(draw, 3), torch.stack([quarters(draw, 3) for _ in range(3)])
    one_hot = torch.eye(3)
    law = law_of_two_positions(p1, p2, one_hot[1], one_hot[[2, 0, 1]], with_probs=False)
    assert (law - (p1[:, None] * p2).double()).abs().max() < 1e-6


def test_greedy_keeps_the_mismatch_itself() -> None:
    output = rejection_greedy_sample(
        torch.tensor([7, 3, 9, 7, 3, 9, 4]),
        [3, 0, 3, 1],
        torch.tensor([7, 3, 5, 7, 3, 9, 6]),
        torch.tensor([80, 81, 82, 83]),
    )
    gap = PLACEHOLDER_TOKEN_ID
    expected = [[7, 3, 5, gap], [81, gap, gap, gap], [7, 3, 9, 82], [6, gap, gap, gap]]
    assert output.tolist() == expected


def test_nothing_counts_behind_a_rejection() -> None:
    output = rejection_greedy_sample(
        torch.tensor([1, 2, 3]), [3], torch.tensor([9, 2, 3]), torch.tensor([4])
    )
    assert output.tolist() == [[9, -1, -1, -1]]


def test_no_drafts_at_all() -> None:
    empty = torch.zeros(0, dtype=torch.int64)
    assert rejection_greedy_sample(empty, [0, 0], empty, torch.tensor([5, 6])).tolist() == [
        [5],
        [6],
    ]


def test_residual() -> None:
    q = torch.tensor([[0.6, 0.3, 0.1]])
    p = torch.tensor([[0.3, 0.3, 0.4]])
    assert recovered_probs(torch.tensor([0]), q, p).tolist() == [[0, 0, 1]]
    chosen = recovered_probs(torch.tensor([0]), None, p)
    assert torch.allclose(chosen, torch.tensor([[0, 3 / 7, 4 / 7]]))
    assert recovered_probs(torch.tensor([0]), p, p).tolist() == [[0, 0, 0]]
    assert p.tolist() == [pytest.approx([0.3, 0.3, 0.4])]


def test_edges_of_acceptance() -> None:
    def first(p: float, q: float, u: float) -> int:
        return int(rejection_random_sample(
            torch.tensor([0]), [1], torch.tensor([[q, 1 - q]]), torch.tensor([[p, 1 - p]]),
            torch.tensor([5]), torch.tensor([1]), torch.tensor([u]))[0, 0])  # fmt: skip

    assert first(p=0.0, q=0.5, u=0.0) == 1  # never a token that the target excludes
    assert first(p=0.5, q=0.5, u=0.999999) == 0
    assert first(p=0.25, q=0.5, u=0.5) == 1
    assert first(p=0.25, q=0.5, u=0.49) == 0
    assert first(p=0.5, q=0.0, u=0.1) == 1  # q cannot have drawn it


def test_streams_differ_and_repeat() -> None:
    seeds, index = torch.tensor([3, 3, 4]), torch.tensor([0, 1, 0])
    rows = [stream_numbers(seeds, index, s).tolist() for s in (ACCEPT, RECOVER, DRAFT)]
    rows.append(uniform_numbers(seeds, index).tolist())
    assert len({number for row in rows for number in row}) == 12
    assert stream_numbers(seeds[:1], index[:1], ACCEPT).tolist() == rows[0][:1]


def test_chosen_drafts_keep_a_seeded_text() -> None:
    """Whatever is drafted, the tokens are those that the plain sampler draws one by one."""
    torch.manual_seed(0)
    logits = torch.randn(5, 16) * 2
    params = SamplingParams(temperature=0.8, top_p=0.9, seed=11)
    plain = []
    for j in range(5):
        metadata = make_sampling_metadata([(params, [1], plain, ())], 16)
        plain.append(int(Sampler()(logits[j : j + 1], metadata).sampled_token_ids))
    for wrong_at in range(5):
        drafts = [t if j != wrong_at else (t + 1) % 16 for j, t in enumerate(plain[:4])]
        metadata = make_sampling_metadata([(params, [1], [], ())], 16)
        rows = expand_to_rows(metadata, [4], torch.tensor(drafts))
        output = RejectionSampler(Sampler())([4], torch.tensor(drafts), None, logits, rows)
        kept = [t for t in output.token_ids[0].tolist() if t != PLACEHOLDER_TOKEN_ID]
        assert kept == plain[: wrong_at + 1]


def test_a_broken_row_counts_only_if_it_is_reached() -> None:
    logits = torch.zeros(3, 4)
    logits[:, 2] = 1.0
    logits[2] = -float("inf")
    metadata = make_sampling_metadata([(SamplingParams(temperature=0), [1], [], ())], 4)
    for drafts, error in ([[2, 2], NO_TOKEN_LEFT], [[2, 3], 0]):
        rows = expand_to_rows(metadata, [2], torch.tensor(drafts))
        output = RejectionSampler(Sampler())([2], torch.tensor(drafts), None, logits, rows)
        assert output.errors.tolist() == [error]


def test_greedy_rows_among_drawn_ones() -> None:
    """Drafts of a greedy request have all probability on one token, and are judged by argmax."""
    logits = torch.randn(4, 8, generator=torch.Generator().manual_seed(2))
    params = [SamplingParams(temperature=0), SamplingParams(temperature=1.0, seed=5)]
    metadata = make_sampling_metadata([(p, [1], [], ()) for p in params], 8)
    drafts = torch.tensor([int(logits[0].argmax()), 3])
    probs = torch.zeros(2, 8).scatter_(1, drafts[:1].expand(2, 1), 1.0)
    probs[1] = 1 / 8
    rows = expand_to_rows(metadata, [1, 1], drafts)
    output = RejectionSampler(Sampler())([1, 1], drafts, probs, logits, rows)
    assert output.token_ids[0].tolist() == logits[:2].argmax(dim=1).tolist()


def test_synthetic_acceptance_follows_its_rates() -> None:
    sampler = RejectionSampler(Sampler(), acceptance_rates=[1.0, 0.5, 0.0])
    drafts = torch.tensor([1, 2, 3] * 400)
    logits = torch.zeros(1600, 8)
    metadata = make_sampling_metadata([(SamplingParams(temperature=0), [1], [], ())] * 400, 8)
    rows = expand_to_rows(metadata, [3] * 400, drafts)
    output = sampler([3] * 400, drafts, None, logits, rows).token_ids
    accepted = (output == torch.tensor([1, 2, 3, -2])).sum(dim=0) / 400
    assert accepted[0] == 1.0 and accepted[2] == 0.0
    assert 0.4 < accepted[1] < 0.6  # four standard deviations are 0.1
