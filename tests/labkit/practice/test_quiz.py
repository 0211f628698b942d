"""Questions: every answer is computed twice, and the screen forgives."""

from __future__ import annotations

import io
import os
import re
import sys
from pathlib import Path

import pytest

from labkit.course.manifest import Course, Phase
from labkit.course.root import ROOT
from labkit.course.state import State
from labkit.practice import quiz, quiz_command
from labkit.practice.question import PHASES, Question, draw, kinds

KINDS = [f"{phase}/{name}" for phase in PHASES for name in kinds(phase)]
SEEDS = 12
MANY = 200
"""Seeds over which the two answers are compared: one draw of a hundred may lie on a limit."""
SLOW = ("03/end-of-a-request", "03/tokens-of-a-step", "03/first-preemption")
SLOW += ("12/states", "12/legal", "11/numbers")
"""Kinds that run a whole engine, compile patterns or fill matrices for each answer."""


def texts(names: list[str], seed: int) -> list[str]:
    """What a round asks."""
    return [draw(kind, one).text for kind, one in quiz.seeds(names, seed)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_engine_and_another_way_agree(kind: str) -> None:
    for seed in range(SEEDS if kind in SLOW else MANY):
        question = draw(kind, seed)
        right, again = question.engine(), question.by_hand()
        if isinstance(right, str) or isinstance(again, str):
            assert right == again, (seed, question.text)
        else:
            assert right == pytest.approx(again, rel=question.tolerance / 2 or 1e-6), seed
        assert question.accepts(str(right))


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_cannot_be_copied(kind: str) -> None:
    drawn = {(q.text, q.engine()) for q in (draw(kind, seed) for seed in range(SEEDS))}
    assert len({text for text, _ in drawn}) > SEEDS // 2
    assert len({right for _, right in drawn}) > 1
    assert draw(kind, 1).text == draw(kind, 1).text


@pytest.mark.parametrize("kind", KINDS)
def test_one_is_no_plural(kind: str) -> None:
    drawn = [draw(kind, seed) for seed in range(60)]
    said = " ".join(text for question in drawn for text in (question.text, question.why))
    assert not re.search(
        r"(?<![\d.,/*+x-])(?<![/*+x-] )\b1 (?!(is|has|ms)\b)[a-z]+s\b(?! \*)", said
    )


@pytest.mark.parametrize("phase", Course(ROOT).ready, ids=lambda phase: phase.number)
def test_every_phase_asks_five_kinds(phase: Phase) -> None:
    assert len(kinds(phase.number)) >= 5


@pytest.mark.parametrize("kind", KINDS)
def test_the_engines_own_code_answers(kind: str) -> None:
    """No question is answered by a copy of what the engine does."""
    files = set[str]()
    sys.setprofile(lambda frame, event, value: files.add(frame.f_code.co_filename))
    try:
        draw(kind, 1).engine()
    finally:
        sys.setprofile(None)
    assert any(f"{os.sep}mini_vllm{os.sep}" in file for file in files)


@pytest.mark.parametrize("phase", [p for p in PHASES if kinds(p)])
def test_no_question_comes_twice_and_no_seed_is_another_shifted(phase: str) -> None:
    names = [f"{phase}/{name}" for name in kinds(phase)] * 2
    rounds = [texts(names, seed) for seed in (7, 8, 9)]
    assert all(len(set(asked)) == len(asked) for asked in rounds)
    shared = [len({*a} & {*b}) for a, b in ((rounds[0], rounds[1]), (rounds[1], rounds[2]))]
    assert max(shared) <= len(names) // 3
    assert rounds[0] == texts(names, 7)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(quiz_command, "course", lambda: Course(tmp_path))
    return tmp_path


def say(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def test_a_round(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["02/hits", "02/waste", "02/new-blocks"]
    right = [str(draw(kind, seed).engine()) for kind, seed in quiz.seeds(names, 4)]
    say(monkeypatch, right[0], "about half", "-1", "")
    quiz_command.ask_all(quiz_command.Screen(), names, 4)
    shown = capsys.readouterr().out
    assert "✓ right" in shown and f"✗ it is {right[1]}." in shown
    assert "'about half' is no number; answer with one, such as 12" in shown
    assert "1 of 2 right, 1 skipped." in shown
    records = [State(home).get("quiz", name) for name in names]
    counts = [(record["asked"], record["right"], record["skipped"]) for record in records]
    assert counts == [(1, 1, 0), (1, 0, 0), (0, 0, 1)]


def test_wrong_ones_come_back_first(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quiz.remember(State(home), "02/hits", "right")
    quiz.remember(State(home), "02/waste", "wrong")
    dues = {kind: when for when, kind in quiz.due(State(home))}
    assert dues["02/waste"] < dues["02/hits"]
    quiz_command.review(count=5, seed=1)
    assert "Nothing is due. The next question, 02/waste" in capsys.readouterr().out


def test_nothing_to_review(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quiz_command.review(count=5, seed=1)
    assert "make quiz-02 asks the first questions" in capsys.readouterr().out


def test_the_end_of_input_ends(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    say(monkeypatch)
    quiz_command.ask_all(quiz_command.Screen(), ["02/hits"], 1)
    assert State(home).get("quiz", "02/hits") is None


@pytest.mark.parametrize("said", ["1 3", "1, 3", "(1, 3)", "[1,3]", "1 and 3"])
def test_two_numbers_may_be_written_in_any_way(said: str) -> None:
    question = Question("Which two?", lambda: "1 3", lambda: "1 3", "")
    assert question.accepts(said) and not question.accepts(said.replace("3", "4"))
