"""The mask kernel through the whole kernel checker."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton exists on Linux only")


def test_12_11_the_mask_through_the_checker(judge: Any) -> None:
    """Words, tails, rows in any order, wide and narrow masks, and no logit read."""
    judge("apply_token_bitmask")
