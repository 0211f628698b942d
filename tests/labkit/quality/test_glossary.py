"""The glossary: every row of every table below "Names", and no table's head."""

from __future__ import annotations

import pytest

from labkit.course.manifest import Course, Phase
from labkit.course.root import ROOT
from labkit.quality import glossary

COURSE = Course(ROOT)


@pytest.mark.parametrize("phase", COURSE.ready, ids=lambda phase: phase.number)
def test_heads_of_tables_are_no_names(phase: Phase) -> None:
    found = glossary.names(phase)
    assert found and not {"name", "word"} & set(found)
    assert "meaning" not in found.values()


def test_a_second_table_is_read_too() -> None:
    found = glossary.names(COURSE.phase("14"))
    assert {"engine", "ASGI"} <= set(found)
