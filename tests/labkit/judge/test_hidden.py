"""The hidden suites run under a plain pytest too, on whatever LAB says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labkit.course.root import find_root
from labkit.judge import hidden
from labkit.judge.hidden_suite import run_hidden
from tests.labkit.toy_course import make_course


def test_a_plain_pytest_runs_a_hidden_suite() -> None:
    words = ["-m", "pytest", "-p", "no:cacheprovider", "-k", "every_status"]
    done = subprocess.run(
        [sys.executable, *words, "tests/hidden/00-orientation"],
        cwd=find_root(),
        env=os.environ | {"LAB": "reference"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    assert "judged: reference" in done.stdout and "make grade-NN" in done.stdout


@pytest.mark.parametrize(
    ("error", "kind"),
    [(NotImplementedError("TODO 04.2: …"), "open TODO"), (AssertionError("no"), "wrong result")],
)
def test_the_kernel_checker_tells_an_open_todo_from_a_wrong_kernel(
    error: Exception, kind: str
) -> None:
    """It reads and runs the file itself, so the subject was asked nothing."""
    subject: Any = SimpleNamespace(task="04.2", lost={}, raised="")
    assert hidden.kind_of(subject, None, error) == kind


def test_a_run_of_some_tasks_has_no_test_of_the_others(tmp_path: Path) -> None:
    """A hunt is solved if every test that it asked for passed, so none may be left "not run"."""
    phase = make_course(tmp_path).phase("00")
    result = run_hidden(phase, {}, seed=1, tasks=["00.2"])
    assert [(test.task, test.outcome) for test in result.tests] == [("00.2", "passed")]
