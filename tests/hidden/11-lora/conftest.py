"""Shared by the hidden tests of phase 11: large packages are imported before an answer is timed."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.judge.hidden import import_first

PACKAGES = ("torch", "triton", "mini_vllm.model.layers", "mini_vllm.lora.request")


@pytest.fixture(autouse=True)
def _warm(subject: Any, reference: Any) -> None:
    import_first(PACKAGES, subject, reference)
