"""Task 04.5: the splits' results into one."""

from __future__ import annotations

import math
from typing import Any

import torch

from labkit.kernels.direct import expect_close
from labkit.kernels.verdict import oracles
from mini_vllm.kernels.attention import REDUCE_SPLITS

NONE = float("-inf")


def check(
    desk: Any, partial: list[list[float]], lse: list[float], out: list[float], at: str
) -> None:
    """One request, one head: rows of `partial` are splits."""
    __tracebackhide__ = True
    output = torch.full((1, 1, len(out)), float("nan"))
    desk.run(
        REDUCE_SPLITS,
        partial=torch.tensor(partial).view(1, 1, len(lse), -1),
        lse=torch.tensor(lse).view(1, 1, -1),
        output=output,
    )
    expect_close(output[0, 0], torch.tensor(out), axes=("dim",), at=at)


def test_04_5_equal_masses_are_averaged(desk: Any) -> None:
    """Two splits of equal mass: the mean of both, whatever the mass is."""
    at = "averages [1, 2] and [3, 6], lse 7 each"
    check(desk, [[1.0, 2.0], [3.0, 6.0]], [7.0, 7.0], [2.0, 4.0], at)


def test_04_5_masses_are_weights(desk: Any) -> None:
    """A split with three times the mass counts three times."""
    at = "averages [0, 4] and [4, 0], masses 3 and 1"
    check(desk, [[0.0, 4.0], [4.0, 0.0]], [math.log(3.0), 0.0], [1.0, 3.0], at)


def test_04_5_empty_splits_count_nothing(desk: Any) -> None:
    """A split with lse -inf has no share; without any mass at all the output is 0, not NaN."""
    at = "the second of three splits is empty"
    check(desk, [[2.0], [0.0], [4.0]], [0.0, NONE, 0.0], [3.0], at)
    check(desk, [[0.0], [0.0]], [NONE, NONE], [0.0], "both splits are empty")


def test_04_5_masses_beyond_exp(desk: Any) -> None:
    """exp(1000) overflows: take the largest lse away first."""
    at = "lse 1000 and 1000 - log(4)"
    check(desk, [[5.0], [0.0]], [1000.0, 1000.0 - math.log(4.0)], [4.0], at)
    check(desk, [[5.0], [0.0]], [-1000.0, -1000.0], [2.5], "lse -1000 twice")


def test_04_5_every_head_of_every_request(desk: Any) -> None:
    """2 requests, 3 heads, 3 splits in a tile of 4, 24 features in a tile of 32."""
    torch.manual_seed(5)
    partial, lse = torch.randn(2, 3, 3, 24), torch.randn(2, 3, 3)
    output = torch.full((2, 3, 24), float("nan"))
    desk.run(REDUCE_SPLITS, partial=partial, lse=lse, output=output)
    expected = oracles.combine(partial, lse).float()
    at = "2 requests, 3 heads, 3 splits"
    expect_close(output, expected, axes=("request", "head", "dim"), at=at)
