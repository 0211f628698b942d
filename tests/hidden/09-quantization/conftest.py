"""Shared by the hidden tests of phase 09: large packages are imported before an answer is timed."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.judge.hidden import import_first

PACKAGES = ("torch", "triton", "mini_vllm.quantization")


@pytest.fixture(autouse=True)
def _warm(subject: Any, reference: Any) -> None:
    import_first(PACKAGES, subject, reference, threads=1)
