"""`make reset` and `make undo` in a process that is killed: all files are changed, or none.

A killed `make update` is in `tests/labkit/course/test_update.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from labkit.course.manifest import Course
from labkit.learner.commands import reset, undo
from tests.labkit.learner.test_commands import screen
from tests.labkit.toy_course import lab, rewrite, solve

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a process to kill")
FILES = ["fifo.py", "lab.ipynb"]
"""Of a phase, in the order in which they get their places."""


@pytest.fixture
def toy(toy: Course) -> Course:
    solve(toy)
    rewrite(toy, "clamp", "return 42")
    notebook = toy.root / "labs/00-toy/lab.ipynb"
    notebook.write_text(notebook.read_text().replace("...", "17", 1))
    return toy


def state(course: Course) -> dict[str, bytes]:
    folder = course.root / "labs"
    return {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def killed(command: Callable[[], None], before: str) -> None:
    """The command in a process that ends at once, as by `kill -9`, before a file gets its place."""
    pid = os.fork()
    if not pid:
        real = os.replace

        def replacing(old: Path, new: Path) -> None:
            return os._exit(9) if Path(new).name == before else real(old, new)

        os.replace = replacing  # type: ignore[assignment]
        try:
            command()
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9, "it came to its end"


def reset_all() -> None:
    reset("0", task="", notebook_only=False)


def undo_all() -> None:
    undo("")


@pytest.mark.parametrize("before", FILES)
def test_a_killed_reset_is_taken_back(
    toy: Course, before: str, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = state(toy)
    killed(reset_all, before)
    assert "a `make reset` was stopped in its middle: your files are in" in screen(toy)[0]
    undo_all()
    assert "`make reset` was stopped in its middle and is taken back" in capsys.readouterr().out
    assert state(toy) == mine
    assert not list(toy.root.glob("labs/**/.*.????????")), "nothing half written is left"


@pytest.mark.parametrize("before", FILES)
def test_a_reset_after_a_killed_one_keeps_what_was_there_first(toy: Course, before: str) -> None:
    mine = state(toy)
    killed(reset_all, before)
    reset_all()
    assert "return 42" not in lab(toy).read_text()
    undo_all()
    assert state(toy) == mine, "its backup is of the learner's files, not of half a skeleton"


@pytest.mark.parametrize("before", FILES)
def test_a_killed_undo_is_taken_back_and_can_be_done_again(
    toy: Course, before: str, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = state(toy)
    reset_all()
    blank = state(toy)
    killed(undo_all, before)
    undo_all()
    assert "`make undo` was stopped in its middle and is taken back" in capsys.readouterr().out
    assert state(toy) == blank
    undo_all()
    assert state(toy) == mine


def test_nothing_is_left_to_take_back_after_a_command_that_ended(toy: Course) -> None:
    reset_all()
    undo_all()
    assert "stopped in its middle" not in screen(toy)[0]
