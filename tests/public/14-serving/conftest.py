"""The tests of phase 14 speak in scenes; `labkit.inside.serving` plays them without a clock, a
socket or a model. A part of an output is written `part("text", [ids])`."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.inside import serving


@pytest.fixture
def scene() -> Any:
    return serving


@pytest.fixture
def part() -> Any:
    def make(text: str = "", ids: list[int] | None = None, index: int = 0, **more: Any) -> Any:
        return {"index": index, "text": text, "ids": ids or [], **more}

    return make
