"""Both kernels through the whole checker: adversarial cases from a fresh seed, watched in the
interpreter, compiled for a GPU, and their bytes counted."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton exists on Linux only")


def test_11_8_shrink_through_the_checker(judge: Any) -> None:
    """Segments of all lengths, slices, odd sizes, far rows and slots, and no other's slot."""
    judge("lora_shrink")


def test_11_9_expand_through_the_checker(judge: Any) -> None:
    """Slices of unequal width, rows of the base that may not be read, and no byte twice."""
    judge("lora_expand")
