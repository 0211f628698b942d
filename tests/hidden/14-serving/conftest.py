"""Shared by the hidden tests of phase 14: packages are imported before an answer is timed."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.judge.hidden import import_first

PACKAGES = ("mini_vllm.engine.async_llm", "mini_vllm.entrypoints.openai.sse", "numpy")


@pytest.fixture(autouse=True)
def _warm(subject: Any, reference: Any) -> None:
    import_first(PACKAGES, subject, reference)
