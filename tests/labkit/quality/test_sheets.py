"""docs/sheets.md says what the guides say, and its examples come out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labkit.course.manifest import Course
from labkit.course.root import ROOT
from labkit.quality import sheets

COURSE = Course(ROOT)
NAMES = [phase.number for phase in COURSE.ready]


@pytest.mark.parametrize("name", NAMES)
def test_a_phase_has_invariants_and_formulas_that_its_chapters_say(name: str) -> None:
    phase = COURSE.phase(name)
    assert len(sheets.invariants(phase)) >= 3
    assert sheets.formulas(phase)


def test_a_list_below_a_heading_is_read_as_well_as_one_in_a_quote() -> None:
    assert sheets.invariants(COURSE.phase("15"))[-1] == "Every wait has an end."
    assert sheets.invariants(COURSE.phase("03"))[3] == "At most `max_num_seqs` requests run."


def test_what_no_chapter_says_and_what_does_not_come_out_is_an_error() -> None:
    phase = COURSE.phase("03")
    formula = next(row for row in sheets.formulas(phase) if row.example)
    assert sheets.fault(phase, formula) == ""
    other = replace(formula, says="the budget is a prime number")
    assert "'the budget is a prime number' is not in" in sheets.fault(phase, other)
    assert sheets.fault(phase, replace(formula, example="2 + 2")).startswith("2 + 2 is 4, and")


@pytest.mark.parametrize(
    ("text", "value", "step"), [("114,688", 114688, 1), ("4.2 ms", 4.2, 0.1), ("-3", -3, 1)]
)
def test_a_result_begins_with_its_number(text: str, value: float, step: float) -> None:
    assert sheets.number(text) == (value, step)


def test_a_result_without_a_number_is_named() -> None:
    with pytest.raises(ValueError, match="'one half' does not begin with a number"):
        sheets.number("one half")
