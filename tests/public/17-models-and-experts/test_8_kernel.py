"""Task 17.8: the grouped kernel. Experts that no pair uses are NaN, and reading them is noticed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from labkit.kernels.cases.rules import CaseRules, TensorRule
from labkit.kernels.direct import solve
from labkit.testing import expect
from mini_vllm.kernels.experts import GROUPED_GEMM

pytest.importorskip("triton", reason="Triton exists on Linux only")
IMPOSSIBLE = -(2**31)


def check(
    at: str,
    experts: list[int],
    num_experts: int = 4,
    columns: int = 20,
    features: int = 24,
    top_k: int = 1,
    idle: int = 0,
    stride: int = 0,
) -> None:
    """One product with tiles of 16 rows: pair p is of row p // top_k and of `experts[p]`."""
    generator = torch.Generator().manual_seed(17)
    pairs, used = len(experts), sorted(set(experts))
    places: list[int] = []
    tiles: list[int] = []
    for expert in used:
        own = [pair for pair in range(pairs) if experts[pair] == expert]
        places += own + [pairs] * (-len(own) % 16)
        tiles += [expert] * -(-len(own) // 16)
    weight = torch.full((num_experts, columns, features), torch.nan)
    weight[used] = torch.randn(len(used), columns, features, generator=generator)
    x = torch.randn(pairs // top_k, features + stride, generator=generator)[:, :features]
    output = torch.full((pairs, columns), torch.nan)
    problem: dict[str, Any] = dict(
        x=x,
        weight=weight,
        sorted_ids=torch.tensor(places + [IMPOSSIBLE] * 16 * idle).int(),
        expert_ids=torch.tensor(tiles + [-1] * idle).int(),
        top_k=top_k,
        output=output,
    )
    readable = torch.zeros(num_experts, dtype=torch.bool)
    readable[used] = True
    rules = {"weight": TensorRule(readable.view(-1, 1, 1), axes=("expert", "column", "feature"),
                                  why="no pair uses this expert")}  # fmt: skip
    solve(GROUPED_GEMM, problem, CaseRules(rules))
    wanted = [
        weight[expert].double() @ x[pair // top_k].double() for pair, expert in enumerate(experts)
    ]
    wrong = [pair for pair in range(pairs) if not close(output[pair], wanted[pair])]
    expect(wrong, [], at=f"{at}: pairs whose row of the output is not x @ weight^T")


def close(found: Tensor, wanted: Tensor) -> bool:
    return bool(((found.double() - wanted).abs() < 1e-4).all())


def test_17_8_one_expert() -> None:
    """Three pairs of expert 0, in one tile."""
    check("3 pairs of one expert", [0, 0, 0], num_experts=1)


def test_17_8_pairs_lie_where_they_are() -> None:
    """Pairs of two experts take turns; results are in the pairs' own order."""
    check("pairs of experts 2 0 2 0 2", [2, 0, 2, 0, 2])


def test_17_8_a_row_of_several_pairs() -> None:
    """Two experts a row: pairs 0 and 1 read row 0."""
    check("3 rows of 2 experts each", [1, 3, 3, 0, 1, 0], top_k=2)


def test_17_8_more_than_a_tile() -> None:
    """40 pairs of one expert are three tiles, the last half full."""
    check("40 pairs of expert 1, 2 of expert 3", [1] * 20 + [3, 3] + [1] * 20)


def test_17_8_idle_tiles() -> None:
    """Behind the last tile stand others, whose expert is -1: they read and write nothing."""
    check("two idle tiles", [1, 2, 1], idle=2)


def test_17_8_columns_of_more_than_a_tile() -> None:
    """70 columns in tiles of 64: the last has 6."""
    check("70 columns", [0, 1, 0], columns=70)


def test_17_8_features_of_more_than_a_tile() -> None:
    """100 features: two steps of the sum, the last cut short."""
    check("100 features", [0, 1, 0], features=100)


def test_17_8_rows_of_a_wider_matrix() -> None:
    """Rows of x lie x_stride apart."""
    check("x is a slice of a wider matrix", [0, 1, 1, 0], top_k=2, stride=7)
