"""Builders for the tests of phase 09. The story: a matrix of a few numbers that fit on a page."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from labkit.kernels.cases import SPECS
from labkit.kernels.cases import quantized as cases
from labkit.kernels.cases.draw import Draw, Setup
from labkit.kernels.direct import expect_close, solve
from labkit.kernels.verdict import oracles


def listed(value: Any, digits: int = 4) -> Any:
    """A tensor as nested lists, floats rounded; anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    return _rounded(
        value.double().tolist() if value.is_floating_point() else value.tolist(), digits
    )


def _rounded(value: Any, digits: int) -> Any:
    if isinstance(value, list):
        return [_rounded(item, digits) for item in value]
    return round(value, digits) + 0.0 if isinstance(value, float) else value


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    """Normal numbers, the same in every run."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def check_kernel(name: str, at: str, make: Callable[[Draw, torch.dtype], Setup]) -> None:
    """Run one of the learner's kernels on a problem, watched, and compare with float64."""
    __tracebackhide__ = True
    problem, rules = make(Draw(9, "public", at), torch.float32)
    expected = oracles.expected(name, problem)
    solve(SPECS[name], problem, rules)
    for tensor, got in oracles.judged(name, problem).items():
        if tensor in expected:
            axes = rules.rule(tensor).axes
            expect_close(got.float(), expected[tensor].float(), axes=axes, at=f"{at}: {tensor}")


@pytest.fixture
def lab() -> Any:
    return SimpleNamespace(listed=listed, random=random, check_kernel=check_kernel, cases=cases)
