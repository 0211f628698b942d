"""Shared by the hidden tests of phase 08: large packages are imported before an answer is timed."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.judge.hidden import import_first

PACKAGES = ("torch", "transformers", "mini_vllm.engine.llm")


@pytest.fixture(autouse=True)
def _warm(subject: Any, reference: Any) -> None:
    import_first(PACKAGES, subject, reference, threads=1)
