"""The grouped kernel through the whole kernel checker."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton exists on Linux only")


def test_17_8_the_product_through_the_checker(judge: Any) -> None:
    """Tiles that are not full, idle ones, experts that may not be read, and far rows."""
    judge("grouped_gemm")
