"""Builders for the tests of phase 09. The story: a matrix of a few numbers that fit on a page."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

torch.set_num_threads(1)


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


@pytest.fixture
def lab() -> Any:
    return SimpleNamespace(listed=listed, random=random)
