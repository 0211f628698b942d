"""Change requests: the solution passes, the unchanged module does not, and a learner's files stay
as they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from labkit.course.manifest import Course, ManifestError
from labkit.course.root import ROOT
from labkit.course.state import State
from labkit.practice import change_command, changes, copies
from labkit.practice.changes import Change

QUICK = ("02.1", "07.2")
"""The others wait for `make test-full`."""
CHANGES = [change for phase in Course(ROOT).ready for change in changes.load(phase)]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(Change, "folder", property(lambda self: tmp_path / "changes" / self.id))
    monkeypatch.setattr(Change, "shown", lambda self, path: path.name)
    monkeypatch.setattr(changes, "backup", lambda root, files: None)
    monkeypatch.setattr(copies, "State", lambda root: State(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(change, marks=() if change.id in QUICK else pytest.mark.slow, id=change.id)
        for change in CHANGES
    ],
)
def test_the_solution_passes_and_the_reference_does_not(change: Change, home: Path) -> None:
    changes.begin(change)
    for tests in (change.public_tests, change.hidden_tests):
        result = changes.judge(change, tests)
        assert result.tests and not all(test.passed for test in result.tests)
    change.file.write_text(changes.solved_text(change), encoding="utf-8")
    for tests in (change.public_tests, change.hidden_tests):
        result = changes.judge(change, tests)
        assert result.tests and all(test.passed for test in result.tests)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.id)
def test_a_request_has_a_worked_state_and_a_discussion(change: Change) -> None:
    assert "\n    " in change.request
    assert len(changes.solution(change)["discussion"]) > 200
    reference = change.phase.reference_file(change.module).read_text(encoding="utf-8")
    assert changes.solved_text(change) != reference


@pytest.mark.parametrize("number", [f"{n:02}" for n in range(2, 17)])
def test_two_a_phase(number: str) -> None:
    assert len(changes.load(Course(ROOT).phase(number))) >= 2


def run(*words: str, **options: bool) -> int:
    try:
        change_command.main(*words, **({"again": False, "tell": False, "yes": True} | options))
    except typer.Exit as end:
        return end.exit_code
    return 0


def test_a_change_from_its_request_to_its_discussion(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change = changes.find(Course(ROOT), "03.1")
    assert run("03.1") == 0
    shown = capsys.readouterr().out
    assert "preempt the request that loses the least work" in shown and "make change-03.1" in shown
    assert run("03.1") == 1
    shown = capsys.readouterr().out
    assert "✗ public tests: 2 of 3" in shown and "ana has 9 computed, ben 2, cleo 5" in shown
    change.file.write_text(changes.solved_text(change), encoding="utf-8")
    assert run("03.1") == 0
    shown = capsys.readouterr().out
    assert "✓ hidden tests: 41 of 41" in shown and "One solution:" in shown
    assert "solved" in State(home).get("changes", "03.1")


def test_a_change_names_each_rule_that_fails_and_where(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change = changes.find(Course(ROOT), "03.1")
    assert run("03.1") == 0
    assert "tests/public" not in capsys.readouterr().out
    good = changes.solved_text(change)
    # The public tests know three running requests; the hidden ones know one alone, and ties.
    begin = good.index("    def _pick_victim")
    first_line = good.index('"""', good.index('"""', begin) + 3) + 3
    slip = "\n        if len(self.running) == 1:\n            return self.running[1]"
    change.file.write_text(good[:first_line] + slip + good[first_line:], encoding="utf-8")
    assert run("03.1") == 1
    shown = capsys.readouterr().out
    line = (good[:first_line] + slip).count("\n") + 1
    assert "✓ public tests: 3 of 3" in shown
    assert "    ✗ the least work is lost\n" in shown and shown.count("✗ the least work") == 1
    assert "raised     IndexError" in shown
    assert f"in Scheduler._pick_victim, scheduler.py:{line}: return self.running[1]" in shown
    assert "next: edit scheduler.py:" in shown and "(Scheduler._pick_victim), then" in shown
    change.file.write_text(good + "\nraise OSError('no')\n", encoding="utf-8")
    assert run("03.1") == 1
    last = good.count("\n") + 2
    shown = capsys.readouterr().out
    assert f"scheduler.py:{last} fails while it is imported: OSError: no" in shown
    change.file.write_text("def f(:\n", encoding="utf-8")
    assert run("03.1") == 2
    assert "scheduler.py:1: invalid syntax; mend it first" in capsys.readouterr().err


def test_every_failing_public_rule_of_a_change_is_named(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change = changes.find(Course(ROOT), "03.1")
    assert run("03.1") == 0
    good = changes.solved_text(change)
    begin = good.index("    def _pick_victim")
    first_line = good.index('"""', good.index('"""', begin) + 3) + 3
    text = good[:first_line] + "\n        return self.running[0]" + good[first_line:]
    change.file.write_text(text, encoding="utf-8")
    capsys.readouterr()
    assert run("03.1") == 1
    shown = capsys.readouterr().out
    assert "✗ FCFS: 9, 2 and 5 tokens are computed; the one with 2 goes." in shown
    assert "✗ FCFS: equal losses; the one admitted last goes." in shown
    assert shown.count("test       tests/public/03-scheduler/change_1.py:") == 2


def test_a_copy_that_solves_open_tasks_is_not_opened_unasked(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("03.1", yes=False) == 1
    assert not changes.find(Course(ROOT), "03.1").file.exists()
    assert "holds the solution of 03.2, 03.3, 03.4 and 4 more" in capsys.readouterr().out


def test_an_unknown_change_is_named() -> None:
    with pytest.raises(ManifestError, match=r"no change '03\.7'; those of phase 03: 03\.1, 03\.2"):
        changes.find(Course(ROOT), "03.7")
