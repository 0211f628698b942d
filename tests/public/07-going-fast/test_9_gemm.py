"""Task 07.9: a product in tiles."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from labkit.kernels.direct import solve
from mini_vllm.kernels.products import GEMM


def run(x: Tensor, weight: Tensor) -> Tensor:
    output = torch.full((len(x), len(weight)), torch.nan, dtype=x.dtype)
    solve(GEMM, dict(x=x, weight=weight, output=output))
    return output


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def check(close: Any, x: Tensor, weight: Tensor, at: str, tolerance: float = 1e-5) -> None:
    close(run(x, weight), x.double() @ weight.double().T, at=at, tolerance=tolerance)


def test_07_9_by_hand(close: Any) -> None:
    """Each row of the weight gives a column of the output."""
    x, weight = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[1.0, 0.0, 0.0], [0.0, 10.0, 1.0]])
    close(run(x, weight), torch.tensor([[1.0, 23.0]]), at="x 1 2 3, weights 1 0 0 and 0 10 1")


@pytest.mark.parametrize(
    ("tokens", "rows", "columns"),
    [(16, 64, 64), (17, 65, 65), (5, 64, 200), (1, 130, 3), (70, 20, 90)],
)
def test_07_9_sides_that_end_inside_a_tile(
    close: Any, tokens: int, rows: int, columns: int
) -> None:
    """Tiles of 16 to 64 tokens, of 64 rows and 64 columns; what is behind a side is not there."""
    x, weight = draw(tokens, columns), draw(rows, columns, seed=1)
    at = f"[{tokens}, {columns}] times [{rows}, {columns}]"
    check(close, x, weight, at, tolerance=1e-5 * columns)


def test_07_9_x_is_a_slice_of_a_wider_matrix(close: Any) -> None:
    """Tokens are x_stride apart, and not K."""
    wide = draw(9, 100)
    check(close, wide[:, 20:60], draw(30, 40, seed=1), at="x = wide[:, 20:60]", tolerance=1e-4)


def test_07_9_the_sum_is_not_kept_in_half_precision(close: Any) -> None:
    """16 tiles add 1 each to a sum of 1,024, which in bfloat16 would not grow any more."""
    x, weight = torch.ones(1, 17 * 64), torch.zeros(2, 17 * 64)
    weight[:, :64] = 16.0
    weight[:, 64::64] = 1.0
    output = run(x.bfloat16(), weight.bfloat16())
    close(output, torch.full((1, 2), 1040.0), at="64 times 16, then 16 ones, 64 columns apart")


def test_07_9_float32_stays_float32(close: Any) -> None:
    """Without TF32: numbers keep their 24 bits."""
    x, weight = torch.tensor([[1 + 2.0**-20]]), torch.tensor([[1.0]])
    close(run(x, weight), x, at="(1 + 2^-20) * 1", tolerance=0)
