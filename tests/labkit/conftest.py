"""The toy course, for tests of what a learner types."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.course.manifest import Course
from tests.labkit.toy_course import make_course


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Course:
    monkeypatch.setenv("LABKIT_ROOT", str(tmp_path))
    monkeypatch.delenv("LAB", raising=False)
    return make_course(tmp_path)
