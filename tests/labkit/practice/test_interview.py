"""An interview for one: what it asks, how it counts, and when it ends."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from labkit.course.console import Screen
from labkit.course.manifest import Course
from labkit.course.root import ROOT
from labkit.course.state import State
from labkit.practice import interview, mastery, progress, viva

COURSE = Course(ROOT)
TWO = [
    viva.Asked("predict", "How many?", "7. Count them.", "phases/00-toy/00-guide.md"),
    viva.Asked("change", "Why?", "It must."),
]


def held(monkeypatch: pytest.MonkeyPatch, typed: str) -> tuple[tuple[int, int, float], str]:
    """The result of an interview in which this is typed and each answer takes 130 seconds."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    paper = io.StringIO()
    out = Screen(Console(file=paper, highlight=False, soft_wrap=True))
    clock: Iterator[float] = iter(range(0, 10_000, 130))
    return interview.hold(out, TWO, lambda: next(clock)), paper.getvalue()


def test_criteria_are_ticked_after_the_clock_and_before_the_key_points(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result, screen = held(monkeypatch, "\n1 2\n\n3\n")
    assert result == (3, 5, 260.0)
    assert screen.index("You took 2:10, longer than 2:00.") < screen.index("Which are true?")
    assert screen.index("Which are true?") < screen.index("  - Count them.")
    assert "Read again" not in screen
    assert "Read again: phases/00-toy/00-guide.md" in held(monkeypatch, "\n1\nq\n")[1]


def test_a_slip_is_asked_again_and_q_leaves_out_what_was_not_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result, screen = held(monkeypatch, "\nboth\n\n\nq\n")
    assert result == (0, 2, 130.0)
    assert "'both' is no list of numbers from 1 to 2, such as 1 2" in screen
    assert held(monkeypatch, "")[0] == (0, 0, 0.0)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("phase", COURSE.ready, ids=lambda phase: phase.number)
def test_every_question_has_criteria_and_fits_the_screen(phase: object) -> None:
    for asked in viva.questions(phase, 5):  # type: ignore[arg-type]
        assert asked.kind in interview.CRITERIA and interview.points(asked.answer)
        page = asked.read.partition("#")[0]
        assert (ROOT / page).is_file() == (asked.kind != "change")
        shown = interview.shown(asked.text)
        prose = [line for line in shown.splitlines() if not line.startswith("    ")]
        assert max(map(len, prose)) <= interview.WIDTH
        assert not any(mark in line for line in prose for mark in ("```", "**"))


def test_progress_shows_what_the_last_interview_ticked(tmp_path: Path) -> None:
    state, phase = State(tmp_path), COURSE.phase("03")
    assert progress.interviewed(phase, state) == ""
    state.put(mastery.INTERVIEWS, "03", {"seed": 1, "ticked": [5, 13], "seconds": 9})
    assert progress.interviewed(phase, state) == "interview 5/13"
