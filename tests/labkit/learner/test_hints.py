"""Hints of tasks with several functions: the one that the learner is at, and not the others."""

from __future__ import annotations

import re

import pytest

from labkit.course.manifest import Course, Phase
from labkit.course.root import ROOT
from labkit.learner.hints import about, parts

COURSE = Course(ROOT)
NAMES = ("Pool.get", "Pool.touch", "Pool.uncache_blocks")
HINT = "Ask first. get: pop each. touch: if 0, remove it; then + 1. uncache: cut the table."


def test_a_hint_is_cut_where_it_names_another_function() -> None:
    assert parts(HINT, NAMES) == [
        ("", "Ask first. "),
        ("Pool.get", "get: pop each. "),
        ("Pool.touch", "touch: if 0, remove it; then + 1. "),
        ("Pool.uncache_blocks", "uncache: cut the table."),
    ]


def test_what_is_about_others_is_kept_back() -> None:
    text, others = about(HINT, NAMES, "Pool.touch")
    assert text == "Ask first. touch: if 0, remove it; then + 1."
    assert others == ["Pool.get", "Pool.uncache_blocks"]


def test_what_has_no_name_is_about_the_only_function_without_one() -> None:
    text, others = about("pop each. touch: if 0, remove it.", NAMES[:2], "Pool.get")
    assert (text, others) == ("pop each.", ["Pool.touch"])


@pytest.mark.parametrize("hint", ["One rule for all.", "Loop: first; then.", "pop. uncache: cut."])
def test_where_it_is_not_plain_all_is_shown(hint: str) -> None:
    assert about(hint, NAMES, "Pool.get") == (hint, [])


@pytest.mark.parametrize("phase", COURSE.ready, ids=lambda phase: phase.number)
def test_nothing_of_a_hint_is_lost(phase: object) -> None:
    """All functions of a task together show all that its hints say."""
    for task in COURSE.phase(phase.number).exercises:  # type: ignore[attr-defined]
        for hint in task.hints:
            assert "".join(text for _, text in parts(hint, task.functions)) == hint
            shown = [about(hint, task.functions, name)[0] for name in task.functions]
            for _, text in parts(hint, task.functions):
                assert any(text.strip() in each for each in shown), (task.id, text)


@pytest.mark.parametrize("phase", COURSE.ready, ids=lambda phase: phase.number)
def test_a_hint_of_a_test_names_a_real_one(phase: Phase) -> None:
    """Each task has some, and a row whose test was renamed is found."""
    texts = [file.read_text("utf-8") for file in phase.public_tests.glob("test_*.py")]
    known = {
        name for text in texts for name in re.findall(r"^(?:async )?def (test_\w+)", text, re.M)
    }
    rows = [name for task in phase.exercises for name in task.test_hints]
    assert set(rows) <= known
    assert all(task.test_hints for task in phase.exercises)
