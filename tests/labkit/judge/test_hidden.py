"""The hidden suites run under a plain pytest too, on whatever LAB says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labkit.course.console import course
from labkit.course.root import find_root
from labkit.judge import hidden
from labkit.judge.hidden_suite import run_hidden
from labkit.process.worker import Program
from labkit.sandbox import isolation
from labkit.sandbox.build import Sandbox
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


SPINNING = """
import threading


def spin():
    while True:
        pass


for _ in range(4):
    threading.Thread(target=spin, daemon=True).start()
"""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("while True:\n    pass\n", "endless loop"),
        ("import os\nos._exit(3)\n", "crash"),
        ("raise ValueError\n", "cannot import"),
        ("raise NotImplementedError\n", "open TODO"),
        (SPINNING, "endless loop"),
    ],
    ids=["loop", "exit", "raise", "todo", "threads"],
)
def test_an_import_that_fails_is_waited_for_once(
    monkeypatch: pytest.MonkeyPatch, text: str, why: str
) -> None:
    """Each task has a fresh worker, and each would wait for the same import again."""
    monkeypatch.setattr(hidden, "IMPORT_SECONDS", 1.0 if text.startswith("while") else 60.0)
    phase = course().phase("00")
    sandbox = Sandbox(phase, {phase.modules[0]: text.encode()}, isolation.LADDER["plain"])
    started: list[Any] = []
    start = sandbox.start
    monkeypatch.setattr(sandbox, "start", lambda limits: started.append(limits) or start(limits))
    with hidden.Subject(phase, sandbox) as subject:
        for task in ("00.1", "00.2", "00.4"):
            subject.enter(task)
            for _ in range(2):
                with pytest.raises(hidden.TaskLost):
                    subject.call("labkit.inside.basic:ping")
        assert subject.lost == dict.fromkeys(("00.1", "00.2", "00.4"), why)
    ends = why in ("endless loop", "crash")  # a fresh worker, to see whether it comes up
    looks = text == SPINNING  # another, to see which module it is
    assert len(started) == 1 + ends + looks


@pytest.mark.parametrize(
    ("body", "seconds", "why"),
    [("raise MemoryError", 60.0, "memory"), ("time.sleep(0.3)", 0.2, "timeout")],
)
def test_a_task_that_takes_too_much_is_over(
    monkeypatch: pytest.MonkeyPatch, body: str, seconds: float, why: str
) -> None:
    """Each answer is in time; but there may be hundreds of them."""
    monkeypatch.setattr(hidden, "TASK_SECONDS", seconds)
    phase = course().phase("00")
    text = f"import time\n\n\ndef slow():\n    {body}\n"
    sandbox = Sandbox(phase, {phase.modules[0]: text.encode()}, isolation.LADDER["plain"])
    p = Program()
    p.call("mini_vllm.request:slow")
    with hidden.Subject(phase, sandbox) as subject:
        for task in ("00.1", "00.2"):
            subject.enter(task)
            for _ in range(2):
                with pytest.raises(hidden.TaskLost):
                    subject.run(p)
        assert subject.lost == dict.fromkeys(("00.1", "00.2"), why)
