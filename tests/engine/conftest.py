"""What every test of the engine begins with."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _the_same_random_numbers() -> None:
    """Those of a test that seeds nothing: a bound of rounding must not depend on the day."""
    torch.manual_seed(0)
