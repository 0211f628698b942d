"""Task 17.6: sort by expert, multiply once each, add."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labkit.inside.cost import elements
from labkit.testing import expect
from mini_vllm.model.moe.grouped import mix_experts, product_by_expert, sort_by_expert

IDS = torch.tensor([[2, 0], [2, 5], [0, 2]])
"""Of the chapter's picture: three tokens, two experts each, six experts."""


def test_17_6_pairs_in_the_experts_order() -> None:
    """Pairs are numbered 0 to 5; expert 0 has pairs 1 and 4."""
    pairs, counts = sort_by_expert(IDS, 6)
    expect(pairs.tolist(), [1, 4, 0, 2, 5, 3], at="pairs of experts 2 0, 2 5, 0 2")
    expect(counts.tolist(), [2, 0, 3, 0, 0, 1], at="how many each expert has")


def test_17_6_of_one_expert_in_the_tokens_order() -> None:
    """40 pairs of one expert stay as they are."""
    pairs, counts = sort_by_expert(torch.ones(20, 2, dtype=torch.int64), 3)
    expect(pairs.tolist(), [*range(40)], at="20 tokens that chose expert 1 twice")
    expect(counts.tolist(), [0, 40, 0], at="counts")


def test_17_6_each_row_by_its_expert() -> None:
    """Expert e multiplies by e + 1."""
    weight = torch.tensor([[[1.0]], [[2.0]], [[3.0]]])
    found = product_by_expert(
        torch.tensor([[1.0], [10.0], [100.0]]), weight, torch.tensor([1, 0, 2])
    )
    expect(found.tolist(), [[1.0], [30.0], [300.0]], at="rows of experts 0, 2, 2")


def test_17_6_no_rows_at_all() -> None:
    """A rank whose experts no token chose: [0, out]."""
    found = product_by_expert(
        torch.zeros(0, 4), torch.ones(2, 3, 4), torch.zeros(2, dtype=torch.int64)
    )
    expect(list(found.shape), [0, 3], at="no rows")


def test_17_6_idle_experts_are_not_multiplied() -> None:
    """One row, one of 400 experts: its weight is read, and no other."""
    weight, counts = torch.ones(400, 8, 8), torch.zeros(400, dtype=torch.int64)
    counts[7] = 1
    cost = elements(product_by_expert, torch.ones(1, 8), weight, counts)
    expect(cost < 5000, True, at=f"{cost:,} numbers touched for one row and 400 experts of 64")


def run(rows: Tensor, counts: Tensor) -> Tensor:
    """Expert e adds 10 ** e to its rows."""
    return rows + (10.0 ** torch.arange(len(counts))).repeat_interleave(counts)[:, None]


def test_17_6_the_weighted_sum_of_each_token() -> None:
    """Token 0: 0.5 of expert 2 and 0.25 of expert 0."""
    x = torch.tensor([[0.0], [1.0], [2.0]])
    weights = torch.tensor([[0.5, 0.25], [1.0, 2.0], [4.0, 0.0]])
    found = mix_experts(x, weights, IDS, 6, run)
    wanted = [[0.5 * 100 + 0.25 * 1], [101.0 + 2 * 100001], [4.0 * 3]]
    expect(found.tolist(), wanted, at="weights .5 .25, 1 2, 4 0")


def test_17_6_input_scaled_instead() -> None:
    """Llama 4: the weight multiplies what goes in."""
    x, ids = torch.tensor([[3.0]]), torch.tensor([[1]])
    found = mix_experts(x, torch.tensor([[0.5]]), ids, 2, run, scales_input=True)
    expect(found.tolist(), [[11.5]], at="half of 3, plus 10")


def test_17_6_one_call_for_all() -> None:
    """`run` gets all rows at once, sorted, with what each expert has."""
    calls: list[Any] = []

    def seen(rows: Tensor, counts: Tensor) -> Tensor:
        calls.append((rows.flatten().tolist(), counts.tolist()))
        return rows

    mix_experts(torch.tensor([[1.0], [2.0], [3.0]]), torch.ones(3, 2), IDS, 6, seen)
    expect(calls, [([1.0, 3.0, 1.0, 2.0, 3.0, 2.0], [2, 0, 3, 0, 0, 1])], at="the calls of run")


def test_17_6_the_dtype_stays() -> None:
    """Weights are float32, and the result is what x is."""
    x = torch.ones(1, 2, dtype=torch.bfloat16)
    found = mix_experts(
        x, torch.ones(1, 1), torch.zeros(1, 1, dtype=torch.int64), 1, lambda r, c: r
    )
    expect(str(found.dtype), "torch.bfloat16", at="x in bfloat16")
