"""Run a phase's public tests and notebook answers in children, and collect what happened.

`judge` is what `make lab-NN`, the phase matrix and the mutants share; it decides nothing about how
a result is shown (`labkit.learner.screen`) or explained (`labkit.judge.diagnose`).
"""

from __future__ import annotations

import errno
import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.course import notebook_source
from labkit.course.manifest import Exercise, Phase
from labkit.course.skeleton import is_todo, todo_in
from labkit.inside import alarm, child
from labkit.judge import notebook_judge, variables
from labkit.judge.reused import NOTEBOOK, Kept, Verdicts
from labkit.process import overlay, reach

PHASE_SECONDS = 60.0
NOTEBOOK_SECONDS = 60.0
STACK_CHARACTERS = 32_000
"""Of what a stopped process says of itself: every thread's stack, and the main thread's, which is
pytest's for the most part, comes last."""
KERNEL_ERRORS = ("InterpreterError", "CompileTimeAssertionFailure", "CompilationError")
"""What the static_assert of a kernel's hole becomes, interpreted and compiled."""
Follow = Callable[[Path], None]
STEERING = ("PYTEST_", "PYTHONOPTIMIZE", "PYTHONWARNINGS", "PYTHONINSPECT", "PYTHONVERBOSE")
"""Variables of a shell that would change what the tests of a phase say."""


@dataclass
class Test:
    """One test function (or one of its parameters) and how it ended.

    Attributes:
        outcome: "passed", "failed", "todo" (it reached a hole), "hang", "skipped" or "not run".
        waits_for: the task of the hole it reached, if `outcome` is "todo".
        kept: it passed before and did not run again (`labkit.judge.reused`).
        detail: what `labkit.judge.pytest_report` wrote: error, message, frames, yours, expected, …
    """

    id: str
    name: str
    title: str
    task: str
    outcome: str = "not run"
    waits_for: str = ""
    kept: bool = False
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
        died: how the process ended before its tests did, "signal 9"; or "".
        busy: after the last test a thread still computed.
        whole: the run came to its own end: each of its tests did, too.
        shared: functions of the learner that were entered outside of any one test.
        notebook_entered: those that the notebook's cells entered; None if it was cut off.
    """

    phase: Phase
    tests: list[Test]
    notebook: list[dict[str, Any]] | None = None
    broken: str = ""
    stack: str = ""
    died: str = ""
    seconds: float = 0.0
    busy: bool = False
    whole: bool = False
    shared: set[str] = field(default_factory=set)
    notebook_entered: set[str] | None = None

    def of_task(self, exercise: Exercise) -> list[Test]:
        return [test for test in self.tests if test.task == exercise.id]

    @property
    def alone(self) -> Exercise | None:
        """The task that was judged alone, of a phase that has others; None if more were."""
        judged = [exercise for exercise in self.phase.exercises if self.of_task(exercise)]
        return judged[0] if len(judged) == 1 < len(self.phase.exercises) else None

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
    phase: Phase,
    mapping: Mapping[str, str],
    notebook: bool = True,
    task: Exercise | None = None,
    kept: Kept | None = None,
) -> PhaseResult:
    """Run the public tests with `mapping` in place, and the notebook's answers beside them; of one
    `task` its tests alone. What is `kept` does not run again."""
    if task:
        part = run_tests(phase, files_of(phase, [task]), mapping, ["-k", task.test_prefix])
        _blame_end(part)
        part.tests = part.of_task(task)
        return part
    kept = kept or Kept()
    with ThreadPoolExecutor(2) as pool:
        answers = None
        blank = notebook_judge.untouched(phase) if notebook and mapping and phase.notebook else []
        if notebook and phase.notebook and kept.notebook is None and not blank:
            choice = "labs" if mapping else "reference"
            answers = pool.submit(judge_notebook, phase, mapping, choice)
        left = [exercise for exercise in phase.exercises if exercise.id not in kept.tasks]
        result = PhaseResult(phase, [], whole=True)
        if left:
            extra = {variables.KEPT: ",".join(kept.tasks)}
            targets = files_of(phase, left) if kept.tasks else [phase.public_tests]
            result = run_tests(phase, targets, mapping, extra=extra)
            _blame_end(result)
        result.notebook, result.notebook_entered = blank or kept.notebook, set() if blank else None
        if answers:
            result.notebook, result.notebook_entered = answers.result()
    if kept.tasks and not result.broken:
        _bring_back(result, kept)
    return result


def files_of(phase: Phase, tasks: Sequence[Exercise]) -> list[Path]:
    """The files that hold the tests of some tasks, such as test_4_decode.py of task 4; the whole
    folder if one of them has no file of its own."""
    found = [sorted(phase.public_tests.glob(f"test_{task.number}_*.py")) for task in tasks]
    return [file for files in found for file in files] if all(found) else [phase.public_tests]


def _bring_back(result: PhaseResult, kept: Kept) -> None:
    """Put the tests that did not run again in their places: task by task, as in the manifest."""
    tests = [test for test in result.tests if test.task not in kept.tasks]
    for task, records in kept.tasks.items():
        tests += [Test(**record, task=task, outcome="passed", kept=True) for record in records]
    order = {exercise.id: place for place, exercise in enumerate(result.phase.exercises)}
    result.tests = sorted(tests, key=lambda test: order.get(test.task, len(order)))


def keep(verdicts: Verdicts, result: PhaseResult) -> None:
    """Remember what passed in this run, unless it was cut off."""
    if not result.whole:
        return
    for exercise in result.phase.exercises:
        tests = result.of_task(exercise)
        if result.task_passed(exercise) and not any(test.kept for test in tests):
            entered = result.shared.union(*(test.detail.get("entered", []) for test in tests))
            records = [{"id": t.id, "name": t.name, "title": t.title} for t in tests]
            verdicts.keep(exercise.id, entered, tests=records)
    if result.notebook_entered is not None:
        verdicts.keep(NOTEBOOK, result.notebook_entered, answers=result.notebook)
    verdicts.write()


def run_tests(
    phase: Phase,
    targets: Sequence[Path],
    mapping: Mapping[str, str],
    options: Sequence[str] = (),
    extra: Mapping[str, str] | None = None,
    base: Mapping[str, str] | None = None,
    seconds: float = PHASE_SECONDS,
    follow: Follow | None = None,
) -> PhaseResult:
    """Run pytest on some files of a phase in a child with limits.

    Args:
        targets: folders or files.
        mapping: the overlay, module -> file; {} = the reference.
        options: more words for pytest.
        extra: more variables for the child.
        base: the environment that these are added to; default: this process's, without what a
            shell may hold to steer other people's pytest or Python.
        seconds: that all of it may compute or sleep.
        follow: told the file in which `labkit.judge.pytest_report` will write what has ended.
    """
    with tempfile.TemporaryDirectory() as folder:
        report, elsewhere = Path(folder, "report.jsonl"), Path(folder, "entered")
        if follow:
            follow(report)
        if base is None:
            base = {k: v for k, v in os.environ.items() if not k.startswith(STEERING)}
        env = overlay.environment(phase.root, mapping, base) | {
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            variables.REPORT: str(report),
            variables.SECONDS: str(phase.test_seconds),
            variables.WATCH: json.dumps(_watch(phase, mapping)),
            **phase.environment,
            **({reach.VARIABLE: str(elsewhere)} if mapping else {}),
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
        events = _events(report)
        result = _collect(phase, events, done)
        result.shared |= set(_lines(elsewhere))
    return result


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def _events(report: Path) -> list[dict[str, Any]]:
    """What the reporter wrote.

    Raises:
        OSError: it is cut off, as on a disk that is full.
    """
    try:
        return [json.loads(line) for line in _lines(report)]
    except ValueError:
        where = str(report.parent.parent)
        raise OSError(errno.ENOSPC, "what the tests found out is cut off", where) from None


def _watch(phase: Phase, mapping: Mapping[str, str]) -> dict[str, dict[str, str]]:
    return {
        mapping[module]: dict.fromkeys(phase.holes(module), module)
        for module in phase.modules
        if module in mapping
    }


def _collect(phase: Phase, events: list[dict[str, Any]], done: child.Finished) -> PhaseResult:
    tests: dict[str, Test] = {}
    broken, ended, busy, shared = "", False, False, set[str]()
    for event in events:
        if event["event"] == "end":
            ended, busy, shared = True, event["busy"], set(event["entered"])
        elif event["event"] == "collected":
            name = event["name"]
            tests[event["id"]] = Test(event["id"], name, event["title"], task_of(name))
        elif event["event"] == "broken":
            broken = broken or event["text"]
        elif event["event"] == "not awaited":
            if event["id"] in tests:
                tests[event["id"]].detail.setdefault("not_awaited", []).append(event["at"])
        elif event["id"] in tests:
            _finish(tests[event["id"]], event)
    if not events and not done.timed_out:
        broken = (done.stderr or done.stdout)[-4000:] or f"pytest ended with code {done.code}"
    hung = done.timed_out or done.code == alarm.STUCK
    if hung and not tests and not broken:
        broken = f"EndlessLoop\n{done.stderr[-4000:]}"
    stack = done.stderr[-STACK_CHARACTERS:] if hung or (done.code or 0) < 0 else ""
    if hung:
        _blame(list(tests.values()), stack)
    result = PhaseResult(phase, list(tests.values()), broken=broken, stack=stack)
    result.seconds, result.busy = done.seconds, busy
    cut_off = {"hang", "not run"} & {test.outcome for test in result.tests}
    if not (hung or broken) and (not ended or cut_off == {"not run"}):
        result.died = _how_it_ended(done)
    result.whole, result.shared = ended and not hung and not cut_off, shared
    return result


def _how_it_ended(done: child.Finished) -> str:
    """Of a process that ended before its tests: its signal, the error that pytest met in its own
    work, as where a test has closed its stdout, or its exit code."""
    if done.code is not None and done.code < 0:
        return f"signal {-done.code}"
    said = re.findall(r"^(?:INTERNALERROR> )?(\w+Error: .+)", f"{done.stdout}\n{done.stderr}", re.M)
    return str(said[-1]) if said else f"exit code {done.code}"


def _frames(stack: str) -> list[tuple[str, int, str]]:
    """(file, line, function) of what faulthandler wrote, the innermost last."""
    lines = re.findall(r'File "(.+)", line (\d+) in (.+)', stack)
    return [(file, int(line), name) for file, line, name in reversed(lines)]


def _blame(tests: list[Test], stack: str) -> None:
    """The test during which the time was over hangs, where faulthandler's stack says."""
    running = next((test for test in tests if test.outcome == "not run"), None)
    if running:
        frames = _frames(stack)
        running.outcome, running.detail = "hang", {"error": "EndlessLoop", "frames": frames}


def _blame_end(result: PhaseResult) -> None:
    """If the process ended by itself, the test during which it did has failed."""
    running = next((test for test in result.tests if test.outcome == "not run"), None)
    if running and result.died:
        frames = _frames(result.stack)
        message = (
            f"here the whole process ended ({result.died}): by os._exit, a signal, a crash, or a"
            " closed sys.stdout?"
        )
        running.outcome, running.detail = "failed", {"message": message, "frames": frames}


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


def judge_notebook(
    phase: Phase, mapping: Mapping[str, str], choice: str
) -> tuple[list[dict[str, Any]], set[str] | None]:
    """The answers' records, and which functions the cells entered. If the judge could not run,
    every task says why, and there is None for a set."""
    with tempfile.TemporaryDirectory() as folder:
        report, entered = Path(folder, "report.json"), Path(folder, "entered")
        env = overlay.environment(phase.root, mapping)
        env |= {reach.VARIABLE: str(entered)} if mapping else {}
        env |= {overlay.CHOICE: choice, "MPLBACKEND": "Agg", **phase.environment}
        words = ["-m", "labkit.judge.notebook_judge", str(phase.root), phase.number, str(report)]
        done = child.run(words, env, child.Limits(NOTEBOOK_SECONDS, phase.memory_mb), phase.root)
        if report.exists():
            records: list[dict[str, Any]] = json.loads(report.read_text(encoding="utf-8"))
            ended = all(record["outcome"] not in ("hang", "not run") for record in records)
            return records, set(_lines(entered)) if ended else None
        cell = "".join(_lines(report.with_suffix(".at")))
    found = re.search(r'File "lab\.ipynb, cell (\S+)", line (\d+)', done.stderr)
    how = {"outcome": "hang", "line": int(found[2]) if found else None}
    if done.code == alarm.STUCK:
        why = f"still running after {phase.test_seconds:g} s of computing or sleeping"
    elif done.timed_out:
        why = f"the notebook is not done after {done.after}"
    else:
        raised = done.stderr.strip().splitlines()[-1] if "Traceback (most" in done.stderr else ""
        gone = f"here the whole process ended (exit code {done.code})"
        how["outcome"], why = "failed", raised or f"{gone}: by os._exit, a signal or a crash?"
    return _cut_off(phase, cell, how | {"message": why}), None


def _cut_off(phase: Phase, cell: str, how: dict[str, Any]) -> list[dict[str, Any]]:
    """The records when the judge did not come to its end: the cell that ran is named, the others
    did not run.

    Args:
        cell: its task; "" before the first.
        how: what its record holds.
    """
    tasks = notebook_source.read(phase).tasks
    if cell not in tasks:
        return [{"task": "notebook", "title": "lab.ipynb"} | how]
    rest = {"outcome": "not run", "message": "did not run: another cell did not end"}
    return [
        {"task": task, "title": title} | (how if task == cell else rest)
        for task, title in tasks.items()
    ]
