"""What chapters and docstrings warn of has a public test that fails when it is done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from labkit.course.manifest import Course, ManifestError, Phase
from labkit.course.root import find_root
from labkit.judge import mistakes
from labkit.quality import pitfalls
from tests.labkit.toy_course import make_course, write

COURSE = Course(find_root())


@pytest.mark.parametrize("phase", COURSE.ready, ids=lambda phase: phase.number)
def test_each_warning_has_a_public_test(phase: Phase) -> None:
    faults = pitfalls.faults(phase, pitfalls.load(phase))
    assert not faults, "\n".join(faults)


CHAPTER = """
# Phase 00: build it

## Task 1: clamp

Steps never warn.

**Pitfalls.** The budget may be spent: then
nothing runs. `limit` counts too.
Never give less than 0.

> **Predict** something?

## Task 2: the queue

Pitfalls

- An empty queue has no head.
- Order: oldest first. It stays.

Behind them.
"""


@pytest.fixture
def phase(tmp_path: Path) -> Phase:
    course = make_course(tmp_path)
    write(tmp_path, "phases/00-toy/02-mini-build.md", CHAPTER)
    return course.phase("00")


def table(phase: Phase, text: str) -> pitfalls.Table:
    write(phase.root, f"tests/corpora/pitfalls/{phase.slug}.toml", text)
    return pitfalls.load(phase)


def test_sentences_stand_below_pitfalls_and_in_docstrings_that_forbid(phase: Phase) -> None:
    module = phase.root / "toy/fifo.py"
    text = module.read_text(encoding="utf-8")
    first = text.index('"""', text.index("def clamp"))
    doc = '''"""Say how many.

    It gives a number. It must not be below 0.

    Args:
        wanted: any number.
        limit: at least 1,
            never more.

    Raises:
        ValueError: if the budget is negative.
    '''
    module.write_text(text[:first] + doc + text[text.index('"""', first + 3) :], encoding="utf-8")
    found = [s.text for s in pitfalls.sentences(phase) if s.task == "00.1"]
    assert found == [
        "The budget may be spent: then nothing runs.",
        "`limit` counts too.",
        "Never give less than 0.",
        "It must not be below 0.",
        "limit: at least 1, never more.",
        "ValueError: if the budget is negative.",
    ]
    found = [s.text for s in pitfalls.sentences(phase) if s.task == "00.2"]
    assert found[:3] == ["An empty queue has no head.", "Order: oldest first.", "It stays."]


def test_a_row_may_hold_sentences_that_stand_together(phase: Phase) -> None:
    every = len(pitfalls.sentences(phase))
    row = '"Order: oldest first. It stays." = "x"\n'
    assert len(pitfalls.missing(phase, table(phase, '["00.2"]\n' + row))) == every - 2
    assert len(pitfalls.missing(phase, table(phase, '["00.1"]\n' + row))) == every


def test_a_row_is_wrong_without_its_sentence_its_mistake_or_its_test(phase: Phase) -> None:
    mistake = next(e["name"] for e in mistakes.entries(phase) if e["exercise"] == "00.1")
    left = len(pitfalls.sentences(phase)) - 1
    row = f'open = {left}\n["00.1"]\n"`limit` counts too." = "{mistake}"\n'

    def faults(row: str, test: str = "test_00_1_limit_bounds[3]") -> list[str]:
        text = json.dumps({"public": {mistake: [test]}})
        mistakes.vectors_file(phase).write_text(text, encoding="utf-8")
        return pitfalls.faults(phase, table(phase, row))

    assert faults(row) == []
    assert pitfalls.caught_by(phase)["00.1", mistake] == "test_00_1_limit_bounds[3]"
    for other in ("test_00_1_that_is_gone", "test_00_2_head_is_oldest"):
        (fault,) = faults(row, other)
        assert "is caught by no public test of its task" in fault
    (fault,) = faults(row.replace(mistake, "unheard-of"))
    assert "task 00.1 has no named mistake 'unheard-of'" in fault
    sentence, count = faults(row.replace("counts too", "counts twice"))
    assert "neither the chapter nor a docstring of the task says so now" in sentence
    assert f"{left + 1} sentences have no row" in count
    (fault,) = faults(row.replace(f"open = {left}", f"open = {left + 1}"))
    assert f"write `open = {left}`" in fault


@pytest.mark.parametrize(
    "value", ['""', "[]", "3", '{ none = "short" }', '{ why = "a b c d e f" }']
)
def test_a_row_of_another_form_is_named(phase: Phase, value: str) -> None:
    with pytest.raises(ManifestError, match="give a named mistake, a list of them, or"):
        table(phase, f'["00.1"]\n"`limit` counts too." = {value}\n')


def test_what_is_open_is_shown_as_rows_to_fill_in(phase: Phase) -> None:
    text = pitfalls.as_toml([s for s in pitfalls.sentences(phase) if s.task == "00.2"][:2])
    assert text == '\n["00.2"]\n"An empty queue has no head." = ""\n"Order: oldest first." = ""\n'
