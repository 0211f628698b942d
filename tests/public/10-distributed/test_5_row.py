"""Task 10.5: row-parallel: columns of the weight, and a sum."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from labkit.testing import expect
from mini_vllm.distributed.linear import RowParallel
from mini_vllm.distributed.simulated import run_ranks


def test_10_5_columns_of_a_rank(lab: Any) -> None:
    """All rows, and a share of the columns."""
    parts = RowParallel(lab.rank(2, 3)).parts(12, [5])
    expect(lab.columns(parts), [[8, 12]], at="rank 2 of 3, 12 columns")
    expect(lab.rows(parts), [[0, 5]], at="rank 2 of 3, 5 rows")


def test_10_5_several_projections(lab: Any) -> None:
    """Each has all of its rows, and the same columns."""
    parts = RowParallel(lab.rank(0, 2)).parts(6, [4, 2])
    expect((lab.rows(parts), lab.columns(parts)), ([[0, 4], [0, 2]], [[0, 3], [0, 3]]), at="rank 0")


def test_10_5_what_does_not_come_out_even(lab: Any) -> None:
    """5 columns cannot be shared by 2."""
    with pytest.raises(ValueError):
        RowParallel(lab.rank(0, 2)).parts(5, [4])


def test_10_5_the_bias_once(lab: Any) -> None:
    """Only the first rank adds it; its own place in the group counts, not its number."""
    adds = [RowParallel(lab.rank(number, 3)).adds_bias for number in range(3)]
    expect(adds, [True, False, False], at="ranks 0, 1, 2 of 3")
    group = lab.rank(0, 2)
    group.ranks, group.rank = [2, 3], 2
    expect(RowParallel(group).adds_bias, True, at="rank 2 of the engine, first of its group 2, 3")


def test_10_5_what_comes_back_is_used(lab: Any) -> None:
    """The sum is what all_reduce returns, in y's dtype; y may or may not be overwritten."""
    yours = RowParallel(lab.deaf(0, 2)).finish(torch.tensor([1.0, 2.0]))
    expect(yours is not None, True, at="finish returns something")
    expect(yours.tolist(), [1001.0, 1002.0], at="all_reduce has added 1000")
    group, sent = lab.deaf(0, 2), list[str]()
    group.all_reduce = lambda x: (sent.append(str(x.dtype)), x)[1]
    RowParallel(group).finish(torch.tensor([1.0, 2.0], dtype=torch.bfloat16))
    expect(sent, ["torch.bfloat16"], at="the dtype of each sum that is asked for, y in bfloat16")


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("biased", [False, True])
def test_10_5_all_together_are_the_layer(lab: Any, ranks: int, biased: bool) -> None:
    """Every rank's result is that of the whole matrix, bias included."""
    weight, x = lab.whole_numbers(1, 6, 12), lab.whole_numbers(2, 4, 12)
    bias = lab.whole_numbers(3, 6) if biased else None

    def work(group: Any) -> torch.Tensor:
        layer = lab.row_layer(group, weight, bias)
        return layer(x[:, layer.parts[0].in_])

    right = (x @ weight.T + (0 if bias is None else bias)).tolist()
    for rank, y in enumerate(run_ranks(ranks, work)):
        expect(y.tolist(), right, at=f"rank {rank} of {ranks}, bias: {biased}")
