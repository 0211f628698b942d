"""Task 06.4: one number per row, and one token from it."""

from __future__ import annotations

from typing import Any

import torch

from labkit.testing import expect
from mini_vllm.sample.sampler import sample_from_logits, uniform_numbers

TABLE = [0.5, 0.0, 0.25, 0.25]


def numbers(seeds: list[int], indices: list[int]) -> list[float]:
    result = uniform_numbers(torch.tensor(seeds), torch.tensor(indices))
    return list(result.tolist())


def test_06_4_the_first_running_sum_above_the_number(lab: Any) -> None:
    """Draw: the number falls into the stretch of one token."""
    uniform = torch.tensor([0.0, 0.3, 0.6, 0.74, 0.8])
    result = sample_from_logits(lab.logits_of(*[TABLE] * 5), uniform)
    at = "numbers 0, 0.3, 0.6, 0.74, 0.8; running sums 0.5, 0.5, 0.75, 1"
    expect(lab.listed(result), [0, 0, 2, 2, 3], at=at, probabilities=TABLE)


def test_06_4_a_number_on_the_border_belongs_to_the_next_token(lab: Any) -> None:
    """Draw: above means above. 0.5 has left the stretch of token 1, and token 2 has none."""
    quarters = [0.25, 0.25, 0.0, 0.25, 0.25]  # equal logits: exact in any precision
    result = sample_from_logits(lab.logits_of(quarters, quarters), torch.tensor([0.5, 0.75]))
    at = "the numbers 0.5 and 0.75 are running sums themselves"
    expect(lab.listed(result), [3, 4], at=at, probabilities=quarters)


def test_06_4_a_token_of_probability_0_is_never_drawn(lab: Any) -> None:
    """Draw: not at the beginning, where the number 0 is, and not at the end."""
    holes = [0.0, 0.5, 0.0, 0.5, 0.0]
    uniform = torch.tensor([0.0, 0.4999999, 0.5, 1 - 2**-24])
    result = sample_from_logits(lab.logits_of(*[holes] * 4), uniform)
    at = "the numbers 0, just below 0.5, 0.5, and the largest below 1"
    expect(lab.listed(result), [1, 1, 3, 3], at=at, probabilities=holes)


def test_06_4_the_largest_number_gives_a_token(lab: Any) -> None:
    """Draw: rounding leaves a long sum a little off 1; the token is legal all the same."""
    logits = torch.randn(300, 1000, generator=torch.Generator().manual_seed(0))
    logits[:, -7:] = -torch.inf
    tokens = sample_from_logits(logits, torch.full((300,), 1 - 2**-24))
    at = "300 rows of 1,000 tokens, the last 7 ruled out; the number is the largest below 1"
    expect((tokens >= 993).sum().item(), 0, at=f"{at}: rows that drew one of the 7")


def test_06_4_the_numbers_are_those_of_the_statement() -> None:
    """Numbers: exactly the formula, so that your engine and the reference write the same text."""
    cases = [(0, 0, 4727170), (0, 1, 10946269), (1, 0, 14476323), (-5, 3, 1747343),
             (2**62, 1000, 14928353)]  # fmt: skip
    for seed, index, top_bits in cases:
        expect(numbers([seed], [index]), [top_bits / 2**24], at=f"seed {seed}, index {index}")


def test_06_4_a_number_depends_on_seed_and_index_only() -> None:
    """Numbers: neither the neighbours in the batch nor an earlier call has any influence."""
    alone = [numbers([seed], [index])[0] for seed, index in ((7, 0), (8, 5), (7, 2), (9, 0))]
    together = numbers([7, 8, 7, 9], [0, 5, 2, 0])
    expect(together, alone, at="four rows in one call, and each in a call of its own")
    expect(numbers([9, 7], [0, 2]), [alone[3], alone[2]], at="two of them, in another order")


def test_06_4_seeds_and_indices_both_matter() -> None:
    """Numbers: another seed, or the next index, gives another number."""
    grid = [(seed, index) for seed in range(30) for index in range(30)]
    drawn = numbers([seed for seed, _ in grid], [index for _, index in grid])
    at = "30 seeds, 30 indices each: different numbers"
    expect(len(set(drawn)), len(grid), at=at)


def test_06_4_the_numbers_fill_the_range_evenly() -> None:
    """Numbers: 16,000 of one seed in 16 bins of [0, 1), about 1,000 in each."""
    drawn = torch.tensor(numbers([3] * 16_000, list(range(16_000))))
    assert drawn.min() >= 0 and drawn.max() < 1, "the numbers must lie in [0, 1)"
    bins = torch.bincount((drawn * 16).long(), minlength=16).tolist()
    assert all(850 <= count <= 1150 for count in bins), f"the bins hold {bins}"
