"""Task 10.3: column-parallel: which rows of the weight a rank keeps."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from labkit.testing import expect
from mini_vllm.distributed.linear import ColumnParallel


def test_10_3_each_projection_on_its_own(lab: Any) -> None:
    """Of gate and up, 6 rows each, rank 1 of 2 has the second half of both."""
    parts = ColumnParallel(lab.rank(1, 2)).parts(4, [6, 6])
    expect(lab.rows(parts), [[3, 6], [3, 6]], at="rank 1 of 2, gate and up of 6 rows")


def test_10_3_all_columns(lab: Any) -> None:
    """Every rank reads the whole input."""
    parts = ColumnParallel(lab.rank(2, 3)).parts(5, [6, 9])
    expect(lab.columns(parts), [[0, 5], [0, 5]], at="rank 2 of 3, input of 5")
    expect(lab.rows(parts), [[4, 6], [6, 9]], at="rank 2 of 3, projections of 6 and 9 rows")


def test_10_3_nothing_is_lost(lab: Any) -> None:
    """The ranks' rows, one after another, are the matrix."""
    for ranks in (1, 2, 3, 4):
        seen = [
            row
            for number in range(ranks)
            for row in range(12)[ColumnParallel(lab.rank(number, ranks)).parts(4, [12])[0].out]
        ]
        expect(seen, list(range(12)), at=f"12 rows over {ranks} ranks")


def test_10_3_what_does_not_come_out_even(lab: Any) -> None:
    """7 rows cannot be shared by 2: an error, not a lost row."""
    with pytest.raises(ValueError):
        ColumnParallel(lab.rank(0, 2)).parts(4, [4, 7])


def test_10_3_the_place_in_the_group(lab: Any) -> None:
    """Ranks 2 and 3 of the engine are shards 0 and 1 of the second stage."""
    group = lab.rank(0, 2)
    group.ranks, group.rank = [2, 3], 2
    parts = ColumnParallel(group).parts(4, [6])
    expect(lab.rows(parts), [[0, 3]], at="rank 2 of the engine, first of its group 2, 3")


def test_10_3_gate_and_up_meet(lab: Any) -> None:
    """What each rank computes of gate times up, side by side, is the whole."""
    gate, up = lab.whole_numbers(1, 6, 4), lab.whole_numbers(2, 6, 4)
    x, pieces = lab.whole_numbers(3, 5, 4), []
    for number in range(3):
        of_gate, of_up = ColumnParallel(lab.rank(number, 3)).parts(4, [6, 6])
        pieces.append((x @ gate[of_gate.out].T) * (x @ up[of_up.out].T))
    whole = (x @ gate.T) * (x @ up.T)
    expect(torch.equal(torch.cat(pieces, -1), whole), True, at="3 ranks, gate * up of 6 features")
