"""The template of a phase is valid: all of it checks, and only the tests that say WRITE are red."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.course.manifest import Course, ManifestError, Phase
from labkit.course.source import SourceError
from labkit.judge import mistakes, public
from labkit.quality import matrix, new_phase
from tests.labkit.toy_course import make_course, write

CLOCK = '''
"""A clock."""

from __future__ import annotations


def tick(time: int) -> int:
    """The next second."""
    return time + 1


class Clock:
    """Shows a time."""

    def _shown(self, time: int) -> str:
        """Minutes and seconds: 61 is "1:01"."""
        return f"{time // 60}:{time % 60:02}"
'''
TASKS = ("toy.clock:tick", "toy.clock:Clock._shown")


@pytest.fixture
def planned(tmp_path: Path) -> Phase:
    course = make_course(tmp_path)
    write(tmp_path, "toy/clock.py", CLOCK)
    return course.phase("01")


def test_the_template_is_a_valid_phase_whose_tests_are_to_be_written(planned: Phase) -> None:
    made = new_phase.write(planned, TASKS)
    assert all(path.is_file() for path in made)
    phase = Course(planned.root).phase("01")
    assert phase.ready and phase.title == planned.title
    assert [task.functions for task in phase.exercises] == [("tick",), ("Clock._shown",)]
    assert "raise NotImplementedError" in phase.lab_file("toy.clock").read_text("utf-8")
    assert mistakes.load(phase) == []
    result = public.judge(phase, {})
    assert [test.outcome for test in result.tests] == ["failed", "failed"]
    assert all("WRITE" in test.detail["message"] for test in result.tests)
    assert result.answers == (4, 4), result.notebook
    found = matrix.run(Course(planned.root), [phase])[phase.slug]
    problems = [problem for some in found.values() for problem in some]
    unwritten = ("to_be_written", "no test test_01_", "mistakes")
    assert [p for p in problems if not any(part in p for part in unwritten)] == []
    assert len(problems) > 4, "the matrix lets no unwritten phase pass"


@pytest.mark.parametrize(
    ("number", "words", "why"),
    [
        ("00", TASKS, "phase 00-toy is there already"),
        ("01", (), "say which functions learners write"),
        ("01", ("toy.nothing:tick",), "there is no toy/nothing.py"),
        ("01", ("toy.fifo:clamp",), "toy.fifo belongs to phase 00-toy"),
    ],
)
def test_what_cannot_be_begun_is_refused(
    planned: Phase, number: str, words: tuple[str, ...], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        new_phase.write(Course(planned.root).phase(number), words)


def test_a_function_that_is_not_there_and_a_file_that_is(planned: Phase) -> None:
    with pytest.raises((SourceError, ManifestError), match="tock"):
        new_phase.write(planned, ["toy.clock:tock"])
    write(planned.root, "solutions/01-later/WALKTHROUGH.md", "mine")
    with pytest.raises(ValueError, match=r"WALKTHROUGH.md is there already"):
        new_phase.write(planned, TASKS)
    assert not planned.public_tests.exists(), "nothing is half written"
