"""Run a phase's public tests and notebook answers in children, and collect what happened.

`judge` is what `make lab-NN`, the phase matrix and the mutants share; it decides nothing about how
a result is shown (`labkit.learner.screen`) or explained (`labkit.judge.diagnose`).
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.course import notebook_source
from labkit.course.manifest import Exercise, Phase
from labkit.course.skeleton import is_todo, todo_in
from labkit.inside import alarm, child
from labkit.judge import pytest_report
from labkit.process import overlay

PHASE_SECONDS = 60.0
NOTEBOOK_SECONDS = 60.0
KERNEL_ERRORS = ("InterpreterError", "CompileTimeAssertionFailure", "CompilationError")
"""What the static_assert of a kernel's hole becomes, interpreted and compiled."""


@dataclass
class Test:
    """One test function (or one of its parameters) and how it ended.

    Attributes:
        outcome: "passed", "failed", "todo" (it reached a hole), "hang", "skipped" or "not run".
        waits_for: the task of the hole it reached, if `outcome` is "todo".
        detail: what `labkit.judge.pytest_report` wrote: error, message, frames, yours, expected, …
    """

    id: str
    name: str
    title: str
    task: str
    outcome: str = "not run"
    waits_for: str = ""
    detail: dict[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return self.outcome == "passed"


@dataclass
class PhaseResult:
    """Everything that one run found out.

    Attributes:
        tests: in the order of the files.
        notebook: records of `labkit.judge.notebook_judge`; None if the phase has none.
        broken: why the tests could not be loaded, or "".
        stack: where the child stood when its time was over, or "".
    """

    phase: Phase
    tests: list[Test]
    notebook: list[dict[str, Any]] | None = None
    broken: str = ""
    stack: str = ""
    seconds: float = 0.0

    def of_task(self, exercise: Exercise) -> list[Test]:
        return [test for test in self.tests if test.task == exercise.id]

    def task_passed(self, exercise: Exercise) -> bool:
        tests = self.of_task(exercise)
        return bool(tests) and all(test.passed for test in tests)

    @property
    def public(self) -> tuple[int, int]:
        return sum(test.passed for test in self.tests), len(self.tests)

    @property
    def answers(self) -> tuple[int, int]:
        records = self.notebook or []
        return sum(record["outcome"] == "passed" for record in records), len(records)

    @property
    def green(self) -> bool:
        """All of it passed: no test and no answer is missing."""
        done, total = self.answers
        tests_pass = bool(self.tests) and all(test.passed for test in self.tests)
        return tests_pass and not self.broken and done == total


def judge(
    phase: Phase, mapping: Mapping[str, str], notebook: bool = True, task: Exercise | None = None
) -> PhaseResult:
    """Run the public tests with `mapping` in place, and the notebook's answers beside them; of one
    `task` its tests alone."""
    choice = "labs" if mapping else "reference"
    if task:
        words = ["-k", f"test_{task.id.replace('.', '_')}_"]
        part = run_tests(phase, [phase.public_tests], mapping, words)
        part.tests = part.of_task(task)
        return part
    with ThreadPoolExecutor(2) as pool:
        answers = None
        if notebook and phase.notebook:
            answers = pool.submit(judge_notebook, phase, mapping, choice)
        result = run_tests(phase, [phase.public_tests], mapping)
        result.notebook = answers.result() if answers else None
    return result


def run_tests(
    phase: Phase,
    targets: Sequence[Path],
    mapping: Mapping[str, str],
    options: Sequence[str] = (),
    extra: Mapping[str, str] | None = None,
    base: Mapping[str, str] | None = None,
    seconds: float = PHASE_SECONDS,
) -> PhaseResult:
    """Run pytest on some files of a phase in a child with limits.

    Args:
        targets: folders or files.
        mapping: the overlay, module -> file; {} = the reference.
        options: more words for pytest.
        extra: more variables for the child.
        base: the environment that these are added to; default: this process's.
        seconds: wall time for all of it.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.jsonl")
        env = overlay.environment(phase.root, mapping, base) | {
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            pytest_report.REPORT: str(report),
            pytest_report.SECONDS: str(phase.test_seconds),
            pytest_report.WATCH: json.dumps(_watch(phase, mapping)),
            **phase.environment,
            **(extra or {}),
        }
        words = [
            "-m", "pytest", "-p", "labkit.judge.pytest_report", "-p", "no:cacheprovider", "-q",
            "--tb=short", "--no-summary", "--show-capture=no",
            "--import-mode=importlib", "-o", "addopts=",
            f"--rootdir={phase.root}", *options,
            *map(str, targets),
        ]  # fmt: skip
        limits = child.Limits(seconds, phase.memory_mb)
        done = child.run(words, env, limits, phase.root)
        lines = report.read_text(encoding="utf-8").splitlines() if report.exists() else []
    return _collect(phase, [json.loads(line) for line in lines], done)


def _watch(phase: Phase, mapping: Mapping[str, str]) -> dict[str, dict[str, str]]:
    return {
        mapping[module]: dict.fromkeys(phase.holes(module), module)
        for module in phase.modules
        if module in mapping
    }


def _collect(phase: Phase, events: list[dict[str, Any]], done: child.Finished) -> PhaseResult:
    tests: dict[str, Test] = {}
    broken = ""
    for event in events:
        if event["event"] == "collected":
            name = event["name"]
            tests[event["id"]] = Test(event["id"], name, event["title"], task_of(name))
        elif event["event"] == "broken":
            broken = broken or event["text"]
        elif event["id"] in tests:
            _finish(tests[event["id"]], event)
    if not events and not done.timed_out:
        broken = (done.stderr or done.stdout)[-4000:] or f"pytest ended with code {done.code}"
    hung = done.timed_out or done.code == alarm.STUCK
    stack = done.stderr[-4000:] if hung or (done.code or 0) < 0 else ""
    if hung:
        _blame(list(tests.values()), stack)
    return PhaseResult(phase, list(tests.values()), None, broken, stack, done.seconds)


def _blame(tests: list[Test], stack: str) -> None:
    """The test during which the time was over hangs, where faulthandler's stack says."""
    running = next((test for test in tests if test.outcome == "not run"), None)
    if running:
        lines = re.findall(r'File "(.+)", line (\d+) in (.+)', stack)
        frames = [(file, int(line), name) for file, line, name in reversed(lines)]
        running.outcome, running.detail = "hang", {"error": "EndlessLoop", "frames": frames}


def _finish(test: Test, event: dict[str, Any]) -> None:
    if test.outcome not in ("not run", "passed"):
        return
    test.detail = event
    test.outcome = event["outcome"]
    if event.get("error") == "EndlessLoop":
        test.outcome = "hang"
    elif event.get("error") in ("NotImplementedError", *KERNEL_ERRORS):
        waits_for = is_todo(todo_in(event.get("message", "")))
        if waits_for:
            test.outcome, test.waits_for = "todo", waits_for


def task_of(name: str) -> str:
    """ "test_03_2_budget" -> "03.2"; "" for a name that follows no task."""
    match = re.match(r"test_(\d\d)_(\d+)_", name)
    return f"{match[1]}.{match[2]}" if match else ""


def judge_notebook(phase: Phase, mapping: Mapping[str, str], choice: str) -> list[dict[str, Any]]:
    """The answers' records; if the judge could not run, every task says why."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        env = overlay.environment(phase.root, mapping)
        env |= {overlay.CHOICE: choice, "MPLBACKEND": "Agg", **phase.environment}
        words = ["-m", "labkit.judge.notebook_judge", str(phase.root), phase.number, str(report)]
        done = child.run(words, env, child.Limits(NOTEBOOK_SECONDS, phase.memory_mb), phase.root)
        if report.exists():
            records: list[dict[str, Any]] = json.loads(report.read_text(encoding="utf-8"))
            return records
    if done.code == alarm.STUCK:
        return _stuck_answers(phase, done.stderr)
    last = done.stderr.strip().splitlines()[-1:] or ["no message"]
    why = f"not done after {NOTEBOOK_SECONDS:g} s" if done.timed_out else last[0]
    return [{"task": "notebook", "title": "lab.ipynb", "outcome": "failed", "message": why}]


def _stuck_answers(phase: Phase, stack: str) -> list[dict[str, Any]]:
    """The records when one cell would not be stopped: it is named, the others did not run."""
    found = re.search(r'File "lab\.ipynb, cell (\S+)", line (\d+)', stack)
    cell, line = (found[1], int(found[2])) if found else ("", None)
    records = []
    for task, title in notebook_source.read(phase).tasks.items():
        record: dict[str, Any] = {"task": task, "title": title, "outcome": "not run"}
        record["message"] = "did not run: another cell did not end"
        if task == cell:
            message = f"still running after {phase.test_seconds:g} s"
            record |= {"outcome": "hang", "message": message, "line": line}
        records.append(record)
    return records
