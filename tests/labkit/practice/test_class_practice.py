"""Hunts and change requests of a class: what is found, what is judged, and what the table says."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from labkit.course.manifest import Course
from labkit.course.root import ROOT
from labkit.grading.batch import practice_table
from labkit.judge import public
from labkit.judge.public import PhaseResult
from labkit.practice import changes, class_practice, hunts

PHASE = Course(ROOT).phase("03")
HUNT, CHANGE = hunts.load(PHASE)[0], changes.load(PHASE)[0]


def hand_in(folder: Path, kind: str, number: str, name: str, text: str) -> None:
    path = folder / kind / number / name
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")


def result(passed: int, total: int, broken: str = "") -> PhaseResult:
    outcomes = ["passed"] * passed + ["failed"] * (total - passed)
    tests = [
        public.Test(str(i), f"test_{i}", "", "", outcome) for i, outcome in enumerate(outcomes)
    ]
    return PhaseResult(PHASE, tests, broken=broken)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Which files were judged; each passes all but one of its tests."""
    judged: list[Any] = []

    def judge(item: Any, *words: Any) -> PhaseResult:
        judged.append((item.id, words[-1].read_text(encoding="utf-8")))
        return result(7, 8)

    monkeypatch.setattr(class_practice, "judge_hunt", judge)
    monkeypatch.setattr(class_practice, "judge_change", judge)
    return judged


def test_each_hunt_and_change_has_a_verdict(tmp_path: Path, asked: list[Any]) -> None:
    hand_in(tmp_path, "hunts", HUNT.id, HUNT.file.name, "x = 1\n")
    hand_in(tmp_path, "changes", CHANGE.id, CHANGE.file.name, "y = 2\n")
    found = class_practice.grade(PHASE, tmp_path, "plain", 1)
    assert asked == [(HUNT.id, "x = 1\n"), (CHANGE.id, "y = 2\n")]
    assert found.pop(f"hunt {HUNT.id}") == found.pop(f"change {CHANGE.id}") == "7 of 8 tests"
    assert set(found.values()) == {class_practice.ABSENT}
    assert len(found) == len(hunts.load(PHASE)) + len(changes.load(PHASE)) - 2


def test_a_change_is_not_run_where_it_should_be_locked_up(
    tmp_path: Path, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rung = type("Rung", (), {"name": "container"})
    monkeypatch.setattr(class_practice.sandbox, "choose_rung", lambda *words: (rung, {}))
    hand_in(tmp_path, "changes", CHANGE.id, CHANGE.file.name, "y = 2\n")
    found = class_practice.grade(PHASE, tmp_path, "auto", 1)
    assert found[f"change {CHANGE.id}"] == class_practice.LOCKED and asked == []


@pytest.mark.parametrize(
    ("judged", "words"),
    [
        (result(3, 3), "solved"),
        (result(0, 0), "cannot be imported: no test ran"),
        (result(0, 2, "a\nNameError: b"), "cannot be imported: NameError: b"),
    ],
)
def test_a_verdict_in_a_few_words(tmp_path: Path, judged: PhaseResult, words: str) -> None:
    file = tmp_path / "x.py"
    file.write_text("")
    assert class_practice.verdict(tmp_path, file, lambda path: judged) == words


def test_what_is_no_plain_file_of_the_student_is_named_and_never_opened(tmp_path: Path) -> None:
    """As for a grade: a link could lead to the solution, a pipe or 20 GB to a grader that waits."""
    mine, other = tmp_path / "mine", tmp_path / "other"
    mine.mkdir(), other.mkdir()
    (other / "x.py").write_text("")
    (mine / "linked").symlink_to(other)
    (mine / "link.py").symlink_to(other / "x.py")
    (mine / "loop.py").symlink_to(mine / "loop.py")
    os.mkfifo(mine / "pipe.py")
    (mine / "folder.py").mkdir()
    with open(mine / "huge.py", "wb") as file:
        file.truncate(20 << 30)

    def said(name: str) -> str:
        return class_practice.verdict(mine, mine / name, lambda path: pytest.fail(str(path)))

    assert said("absent.py") == class_practice.ABSENT
    for name in ("linked/x.py", "link.py", "loop.py", "pipe.py", "folder.py"):
        assert "hand in the file itself" in said(name), name
    assert "at most" in said("huge.py")


def test_the_table_has_a_line_for_each_student() -> None:
    rows = {"ada": {"hunt 03.1": "solved", "change 03.1": "solved"}, "=bob": {"problem": "said"}}
    table = list(csv.DictReader(practice_table(rows).splitlines()))
    assert [(row["solved"], row["hunt 03.1"], row["problem"]) for row in table] == [
        ("2", "solved", ""),
        ("0", "", "said"),
    ]
    assert not table[1]["student"].startswith("=")


@pytest.mark.slow
def test_a_mended_hunt_is_solved_and_the_given_copy_is_not(tmp_path: Path) -> None:
    right = PHASE.reference_file(HUNT.mistake.module).read_text(encoding="utf-8")
    for name, text in (("given", HUNT.mistake.text), ("mended", right)):
        hand_in(tmp_path / name, "hunts", HUNT.id, HUNT.file.name, text)
    key = f"hunt {HUNT.id}"
    assert class_practice.grade(PHASE, tmp_path / "mended", "plain", 1)[key] == "solved"
    assert "of" in class_practice.grade(PHASE, tmp_path / "given", "plain", 1)[key]


@pytest.mark.slow
def test_a_class_is_graded_and_its_table_says_what_each_has_solved(tmp_path: Path) -> None:
    """The whole command, as an instructor types it: one student has solved a hunt and a change, one
    hands in what she was given, one nothing, and one a file that ends the process that reads it."""
    right = PHASE.reference_file(HUNT.mistake.module).read_text(encoding="utf-8")
    students = tmp_path / "in"
    hand_in(students / "ada", "hunts", HUNT.id, HUNT.file.name, right)
    hand_in(students / "ada", "changes", CHANGE.id, CHANGE.file.name, changes.solved_text(CHANGE))
    hand_in(students / "bob", "hunts", HUNT.id, HUNT.file.name, HUNT.mistake.text)
    unchanged = PHASE.reference_file(CHANGE.module).read_text(encoding="utf-8")
    hand_in(students / "bob", "changes", CHANGE.id, CHANGE.file.name, unchanged)
    (students / "cid").mkdir()
    leaves = "import os\n\nos._exit(0)\n"
    hand_in(students / "dan", "changes", CHANGE.id, CHANGE.file.name, leaves)
    words = ["grade-class", PHASE.number, str(students), "--out", str(tmp_path / "out")]
    words += ["--practice", "--isolation", "plain", "--seed", "1", "--jobs", "1"]
    done = subprocess.run([sys.executable, "-m", "labkit", *words], cwd=ROOT, timeout=900)
    assert done.returncode == 0
    text = (tmp_path / "out" / "practice.csv").read_text(encoding="utf-8")
    table = {row["student"]: row for row in csv.DictReader(text.splitlines())}
    hunt, change = f"hunt {HUNT.id}", f"change {CHANGE.id}"
    assert (table["ada"]["solved"], table["ada"][hunt], table["ada"][change]) == (
        "2", "solved", "solved",
    )  # fmt: skip
    assert table["bob"]["solved"] == "0"
    assert " of " in table["bob"][hunt] and " of " in table["bob"][change]
    assert set(table["cid"].values()) == {"cid", "0", class_practice.ABSENT}
    assert table["dan"][change].startswith("cannot be imported")
