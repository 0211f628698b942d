"""Task 06.5: a batch of greedy and random rows."""

from __future__ import annotations

from typing import Any

import torch

from labkit.inside.cost import elements
from labkit.testing import expect
from mini_vllm.sample.sampler import Sampler

FIVE = [0.1, 0.4, 0.05, 0.3, 0.15]


def drawn(lab: Any, probabilities: list[float], **params: Any) -> list[int]:
    """Which tokens come up in 4,000 draws of one request."""
    metadata = lab.many_draws(4000, len(probabilities), seed=1, **params)
    logits = lab.logits_of(probabilities).expand(4000, -1)
    return sorted(set(Sampler().sample_randomly(logits, metadata).tolist()))


def counts(lab: Any, probabilities: list[float], number: int, **params: Any) -> list[int]:
    metadata = lab.many_draws(number, len(probabilities), seed=5, **params)
    logits = lab.logits_of(probabilities).expand(number, -1)
    tokens = Sampler().sample_randomly(logits, metadata)
    return list(torch.bincount(tokens, minlength=len(probabilities)).tolist())


def test_06_5_greedy_rows_get_the_argmax(lab: Any) -> None:
    """A batch of greedy rows only: the largest logit of each, and no random number."""
    logits = torch.tensor([[1.0, 3.0, 2.0], [5.0, 4.0, 3.0]])
    metadata = lab.metadata_of(3, lab.row(), lab.row())
    at = "two greedy rows; their metadata has no seeds and no temperatures"
    expect(Sampler().sample(logits, metadata).tolist(), [1, 0], at=at)


def mixed(lab: Any) -> tuple[list[int], list[int]]:
    """Tokens of a batch of greedy and random rows in turns, and each row's token alone."""
    logits = lab.logits_of(*[FIVE] * 12)
    rows = [
        lab.row() if index % 2 == 0 else lab.row(temperature=3.0, seed=index) for index in range(12)
    ]
    alone = [Sampler().sample(logits[:1], lab.metadata_of(5, row)).tolist()[0] for row in rows]
    return Sampler().sample(logits, lab.metadata_of(5, *rows)).tolist(), alone


def test_06_5_greedy_rows_of_a_mixed_batch(lab: Any) -> None:
    """A mixed batch: greedy rows get the argmax."""
    yours, _ = mixed(lab)
    expect(yours[::2], [1] * 6, at="rows 0, 2, 4, … of 12 are greedy", probabilities=FIVE)


def test_06_5_random_rows_of_a_mixed_batch(lab: Any) -> None:
    """A mixed batch: random rows get what they would get alone."""
    yours, alone = mixed(lab)
    at = "rows 1, 3, 5, … of 12 are random; the others are greedy"
    expect(yours[1::2], alone[1::2], at=at, probabilities=FIVE)
    assert len(set(yours[1::2])) > 1, f"six rows with six seeds drew {yours[1::2]}"


def test_06_5_samples_follow_the_probabilities(lab: Any) -> None:
    """20,000 draws of one request come up as often as they should."""
    seen = counts(lab, FIVE, 20_000, temperature=1.0)
    expected = [20_000 * p for p in FIVE]
    statistic = sum((s - e) ** 2 / e for s, e in zip(seen, expected, strict=True))
    at = f"chi-square of the counts is {statistic:.1f}; with 4 degrees of freedom below 25"
    assert statistic < 25, f"{at}: {seen}, expected {expected}"


def test_06_5_temperature_comes_before_the_filters(lab: Any) -> None:
    """Temperature first: the filters see the sharpened or flattened distribution."""
    two = [0.7, 0.3]
    at = "at temperature 0.2 token 0 has 0.986"
    expect(drawn(lab, two, temperature=0.2, top_p=0.8), [0], at=f"top_p 0.8; {at}")
    at = "at temperature 10 token 1 is 0.92 times as probable as token 0"
    expect(drawn(lab, two, temperature=10.0, min_p=0.6), [0, 1], at=f"min_p 0.6; {at}")


def test_06_5_min_p_comes_before_top_p(lab: Any) -> None:
    """Min-p first: what it rules out has no mass when top-p counts."""
    probabilities = [0.4, 0.3, 0.08, 0.08, 0.07, 0.07]
    yours = drawn(lab, probabilities, temperature=1.0, min_p=0.5, top_p=0.55)
    at = "min_p 0.5 leaves tokens 0 and 1; token 0 then has 0.4 / 0.7, more than top_p 0.55"
    expect(yours, [0], at=at, probabilities=probabilities)


def test_06_5_every_filter_is_used(lab: Any) -> None:
    """Each filter alone rules out what it should."""
    for params, expected in (
        ({}, [0, 1, 2, 3, 4]), ({"top_k": 2}, [1, 3]), ({"top_p": 0.8}, [1, 3, 4]),
        ({"min_p": 0.3}, [1, 3, 4]),
    ):  # fmt: skip
        yours = drawn(lab, FIVE, temperature=1.0, **params)
        expect(yours, expected, at=f"4,000 draws with {params}", probabilities=FIVE)
    plain = lab.metadata_of(10_000, lab.row(temperature=1.0), lab.row(temperature=1.0))
    cost = elements(Sampler().sample, torch.zeros(2, 10_000), plain) / 20_000
    assert cost < 11, f"no row has a filter, and each logit is touched {cost:.0f} times"


def test_06_5_a_seeded_row_does_not_depend_on_the_batch(lab: Any) -> None:
    """Batch invariance: alone, beside others, in another order, a row gets the same token."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 50, generator=generator)
    rows = [
        lab.row(output=range(length), temperature=1.0, seed=seed, **params)
        for seed, length, params in (
            (1, 0, {}), (1, 4, {"top_k": 7}), (2, 0, {"top_p": 0.7}), (2, 1, {"min_p": 0.1}),
            (3, 9, {"top_k": 20, "top_p": 0.9}), (1, 0, {}),
        )
    ]  # fmt: skip
    alone = [
        Sampler().sample(logits[i : i + 1], lab.metadata_of(50, rows[i])).tolist()[0]
        for i in range(6)
    ]
    together = Sampler().sample(logits, lab.metadata_of(50, *rows)).tolist()
    expect(together, alone, at="six rows in one batch, and each alone")
    backwards = Sampler().sample(logits.flip(0), lab.metadata_of(50, *rows[::-1])).tolist()
    expect(backwards, alone[::-1], at="the six rows in the opposite order")


def test_06_5_a_preempted_request_goes_on_as_if_nothing_had_been(lab: Any) -> None:
    """After preemption the batch is built anew; the next token is the same."""
    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(1))
    kept, output = lab.metadata_of(40, lab.row(temperature=1.0, seed=8)), []
    for step in range(5):
        rebuilt = lab.metadata_of(40, lab.row(output=output, temperature=1.0, seed=8))
        token = Sampler().sample(logits[step : step + 1], kept)
        again = Sampler().sample(logits[step : step + 1], rebuilt)
        expect(again.tolist(), token.tolist(), at=f"token {step}: metadata built anew, or kept")
        kept.advance(token)
        output.append(token.item())
    assert len(set(output)) > 1, f"five draws gave {output}: does the index of the token count?"
