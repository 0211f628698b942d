"""The hidden suites run under a plain pytest too, on whatever LAB says."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import engine

from labkit.course.console import course
from labkit.course.root import find_root
from labkit.course.skeleton import skeleton
from labkit.inside import child, timeouts
from labkit.judge import hidden
from labkit.judge.hidden_suite import run_hidden
from labkit.process.worker import Program
from labkit.sandbox import isolation
from labkit.sandbox.build import Sandbox
from tests.labkit.hand_in import contents
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


def test_requests_with_arrays_are_compared_by_their_numbers() -> None:
    """A report of a failed test asks whether the reference was asked the same. With arrays that
    were made twice this ended the whole run, and a wrong answer to 05.8 was "not run"."""

    def worker(*numbers: float) -> Any:
        return SimpleNamespace(asked=("run", {"steps": [np.array(numbers)], "seed": 0}))

    assert hidden.asked_the_same(worker(1, 2), worker(1, 2))
    assert not hidden.asked_the_same(worker(1, 2), worker(1, 3))
    assert not hidden.asked_the_same(worker(1, 2), worker(1, 2, 3))


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


MANY_TIMES = 500
"""As long as the reference takes, for what must be in time on a machine that stands still."""
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
    sandbox = Sandbox(phase, contents(phase, text), isolation.LADDER["plain"])
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
    ends = {"endless loop": 1, "crash": 2}.get(why, 0)  # fresh workers, to see if one comes up
    looks = text == SPINNING  # another, to see which module it is
    assert len(started) == 1 + ends + looks


@pytest.mark.parametrize("trap", ["while True:\n    pass\n", SPINNING], ids=["loop", "threads"])
def test_an_import_of_a_file_that_never_ends_fails_at_once(
    monkeypatch: pytest.MonkeyPatch, trap: str
) -> None:
    """One of the phase's files imports the other, which is waited for once."""
    monkeypatch.setattr(hidden, "IMPORT_SECONDS", 60.0 if trap == SPINNING else 2.0)
    monkeypatch.setattr(hidden, "FAIR_TIMES", MANY_TIMES)
    phase = course().phase("03")
    first, second = phase.modules
    files = {module: phase.reference_file(module).read_bytes() for module in phase.modules}
    files[first] += trap.encode()
    sandbox = Sandbox(phase, files, isolation.LADDER["plain"])
    p = Program()
    p.call("importlib:import_module", second)
    with hidden.Subject(phase, sandbox) as subject:
        for task in phase.exercises:
            subject.enter(task.id)
            with pytest.raises(hidden.TaskLost):
                subject.run(p)
            assert subject.culprit() == "request_queue.py"
        assert subject.unusable == dict.fromkeys(phase.modules, "endless loop")
        assert subject.starts == 2 + (trap == SPINNING)
    assert sandbox.submission == files, "the kernel checker reads them"


SLOW = """
import pathlib
import time

mark = pathlib.Path("{mark}")
time.sleep(600 if mark.exists() else 0.7)
mark.touch()
"""


def test_a_slow_import_is_not_waited_for_in_every_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first takes most of what there is for all of them."""
    phase = course().phase("00")
    text = phase.reference_file(phase.modules[0]).read_text(encoding="utf-8")
    slow = text + SLOW.replace("{mark}", str(tmp_path / "mark"))
    sandbox = Sandbox(phase, contents(phase, slow), isolation.LADDER["plain"])
    with hidden.Subject(phase, sandbox) as subject:
        monkeypatch.setattr(subject, "_import_the_reference", lambda: 0.01)
        subject.enter("00.1")
        subject.call("labkit.inside.basic:ping")
        first = subject.imports
        assert first > 0
        monkeypatch.setattr(hidden, "IMPORT_SECONDS", first + 0.3)
        for task in ("00.2", "00.3", "00.4"):
            subject.enter(task)
            with pytest.raises(hidden.TaskLost):
                subject.call("labkit.inside.basic:ping")
        assert subject.imports < first + 0.6


TRAPS = {"hang": "while True: pass", "slow": "time.sleep(0.05)"}


@pytest.mark.parametrize(("trap", "why"), [("hang", "endless loop"), ("slow", "timeout")])
@pytest.mark.slow
def test_a_trap_in_every_function_costs_little_more_than_one_in_three(
    monkeypatch: pytest.MonkeyPatch, trap: str, why: str
) -> None:
    """What is waited for in vain is waited for half as long the next time, and a right function
    among the others has its time, where the reference's answers are slow, too."""
    slow = trap == "slow"
    monkeypatch.setattr(hidden, "ANSWER_SECONDS", 60.0 if slow else 2.0)
    monkeypatch.setattr(hidden, "FIRST_SECONDS", 2.0)
    monkeypatch.setattr(hidden, "TASK_SECONDS", 0.8 if slow else 60.0)
    phase = course().phase("03")
    text = (
        f"import time\n\n\ndef trap():\n    {TRAPS[trap]}\n\n\ndef slow():\n    time.sleep(0.4)\n"
    )
    files = {module: text.encode() for module in phase.modules}
    p, right = Program(), Program()
    p.call(f"{phase.modules[0]}:trap")
    right.see(right.call(f"{phase.modules[0]}:slow"))
    reference: Any = SimpleNamespace(first=1.0, slowest=0.1)
    shares, calls = [], []
    with hidden.Subject(phase, Sandbox(phase, files, isolation.LADDER["plain"])) as subject:
        for task in ("03.1", "03.2", "03.3", "03.4", "03.5", "03.6"):
            subject.enter(task, None if slow else reference)
            shares.append(subject._share())
            calls.append(0)
            with pytest.raises(hidden.TaskLost):
                while calls[-1] < 100:
                    calls[-1] += 1
                    subject.run(p)
        assert set(subject.lost.values()) == {why} and len(subject.lost) == 6
        assert shares == [1, 1 / 2, 1 / 4, 1 / 8, 1 / 8, 1 / 8]
        assert calls[-1] <= (3 if slow else 1), "an eighth of 0.8 s, each call 0.05 s; or the first"
        if trap == "hang":
            assert subject.limits.seconds == 0.5, "five times the reference's slowest answer"
            monkeypatch.setattr(hidden, "FIRST_SECONDS", 60.0)
            subject.enter("03.7", SimpleNamespace(first=60.0, slowest=0.1))  # type: ignore[arg-type]
            assert subject.run(right) == [None]
            subject.enter("03.8", None)
            assert subject.limits.seconds == 0.25


def test_imports_are_slow_where_the_references_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that is slow, or has much else to do, no right file is called endless."""
    monkeypatch.setattr(hidden, "IMPORT_SECONDS", 0.0)
    monkeypatch.setattr(hidden, "FAIR_TIMES", MANY_TIMES)
    phase = course().phase("02")
    files = {module: phase.reference_file(module).read_bytes() for module in phase.modules}
    sandbox = Sandbox(phase, files, isolation.LADDER["plain"])
    with hidden.Subject(phase, sandbox) as subject:
        for task in phase.exercises:
            subject.enter(task.id)
            subject.call("labkit.inside.basic:ping")
        assert subject.lost == {} and subject.fair > 0


def test_threads_that_a_function_leaves_behind_end_the_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They make every later answer slow, and each would still be in time."""
    monkeypatch.setattr(hidden, "LOOK_SECONDS", 0.0)
    phase = course().phase("00")
    text = "def busy():\n" + textwrap.indent(SPINNING, "    ")
    sandbox = Sandbox(phase, contents(phase, text), isolation.LADDER["plain"])
    p = Program()
    p.call("mini_vllm.request:busy")
    with hidden.Subject(phase, sandbox) as subject:
        subject.enter("00.1")
        subject.call("labkit.inside.basic:ping")
        with pytest.raises(hidden.TaskLost):
            subject.run(p)
        assert subject.lost == {"00.1": "endless loop"}


@pytest.mark.skipif(
    sys.platform != "linux", reason="not run: this system tells no times of threads"
)
@pytest.mark.parametrize(
    ("body", "lost"),
    [
        ("time.sleep(2)", {"00.1": "timeout"}),
        ("end = time.thread_time() + 1\n    while time.thread_time() < end: pass", {}),
    ],
)
def test_a_sleeper_is_not_waited_for_as_long_as_slow_code(
    monkeypatch: pytest.MonkeyPatch, body: str, lost: dict[str, str]
) -> None:
    """Code that computes may need its time; what is at rest would only rest longer."""
    monkeypatch.setattr(hidden, "SLEEP_SECONDS", 3.5)
    phase = course().phase("00")
    text = f"import time\n\n\ndef slow():\n    {body}\n"
    sandbox = Sandbox(phase, contents(phase, text), isolation.LADDER["plain"])
    p = Program()
    p.call("mini_vllm.request:slow")
    with hidden.Subject(phase, sandbox) as subject:
        subject.enter("00.1")
        with contextlib.suppress(hidden.TaskLost):
            for _ in range(6):
                subject.run(p)
        assert subject.lost == lost


def test_what_others_kept_the_worker_waiting_is_taken_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hundreds of short answers take long on a busy machine; the clock is the last resort."""
    monkeypatch.setattr(hidden, "TASK_SECONDS", 0.2)
    phase = course().phase("00")
    text = "import time\n\n\ndef slow():\n    time.sleep(0.05)\n"
    sandbox = Sandbox(phase, contents(phase, text), isolation.LADDER["plain"])
    p = Program()
    p.call("mini_vllm.request:slow")
    with hidden.Subject(phase, sandbox) as subject:
        monkeypatch.setattr(timeouts, "kept_waiting", lambda process: subject.passed)
        subject.enter("00.1")
        for _ in range(8):
            subject.run(p)
        assert subject.lost == {} and subject.seconds > 0.4
        monkeypatch.setattr(timeouts, "WALL_TIMES", 1.0)
        with pytest.raises(hidden.TaskLost):
            subject.run(p)
        assert subject.lost == {"00.1": "timeout"}


@pytest.mark.skipif(sys.platform != "linux", reason="not run: this system counts no writing")
def test_files_that_are_written_again_and_again_end_the_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each answer is in time, no file is too large, and no folder is full."""
    monkeypatch.setattr(hidden, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(hidden, "MOST_WRITTEN", 100 << 20)
    phase = course().phase("00")
    text = "def slow():\n    with open('f', 'wb') as file:\n        file.write(bytes(20 << 20))\n"
    sandbox = Sandbox(phase, contents(phase, text), isolation.LADDER["plain"])
    p = Program()
    p.call("mini_vllm.request:slow")
    with hidden.Subject(phase, sandbox) as subject:
        subject.enter("00.1")
        subject.look_at = 0.001
        with pytest.raises(hidden.TaskLost):
            for _ in range(40):
                subject.run(p)
        assert subject.lost == {"00.1": "timeout"}
        subject.enter("00.2")
        subject.run(p)


def test_an_unfinished_hand_in_is_asked_no_more_than_a_right_one(tmp_path: Path) -> None:
    """Each of its tests fails, and Hypothesis would ask thousands of questions about each."""
    phase = course().phase("14")
    module = phase.exercise("14.9").module
    file, asked = tmp_path / "admission.py", tmp_path / "asked"
    file.write_text(skeleton(phase, module), encoding="utf-8")
    counts = []
    for mapping in ({}, {module: str(file)}):
        asked.write_text("")
        result = run_hidden(phase, mapping, 1, ["14.9"], only="random_limits", asked=asked)
        assert [test.passed for test in result.tests] == [not mapping]
        counts.append(len(asked.read_text().splitlines()))
    assert counts[1] < 2 * counts[0]


def test_a_reference_that_gives_no_answer_is_the_graders_fault() -> None:
    """Hypothesis asks again what has failed, and would say that the learner's code is flaky."""
    limits = child.Limits(1.0)
    times = iter([99.0, 0.0])
    p, reference = Program(), hidden.Observed(find_root(), {}, limits, "reference", None, 20.0)
    p.call("time:sleep", 0.0)

    @settings(database=None, deadline=None, max_examples=3)
    @given(st.just(0))
    def asked(_: int) -> None:
        p.steps[-1]["args"] = [["plain", next(times, 0.0)]]
        reference.run(p)

    phase = course().phase("00")
    box = Sandbox(phase, contents(phase, ""), isolation.LADDER["plain"])
    with reference, hidden.Subject(phase, box) as subject:
        reference.call("labkit.inside.basic:ping")
        with pytest.raises(hidden.SandboxBroken, match="hang") as caught:
            asked()
        assert hidden.kind_of(subject, reference, caught.value) == hidden.SANDBOX


def test_a_run_leaves_nothing_in_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference makes folders there, too, and pytest its own."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    tmp_path.chmod(0o711)
    result = run_hidden(course().phase("15"), {}, 1, ["15.10"], only="any_")
    assert result.tests and all(test.passed for test in result.tests)
    assert list(tmp_path.iterdir()) == []


def test_hypothesis_still_has_the_limit_that_grades_set() -> None:
    assert isinstance(engine.MAX_SHRINKING_SECONDS, int)


@pytest.mark.parametrize("fault", ["no_such_name", "import os; os._exit(1)"])
def test_a_broken_file_costs_the_tasks_of_no_other(tmp_path: Path, fault: str) -> None:
    """Fixtures ask the subject too, and pytest keeps what a fixture has raised."""
    phase = course().phase("14")
    broken = phase.exercise("14.13").module
    file = tmp_path / phase.lab_file(broken).name
    file.write_text(phase.reference_file(broken).read_text(encoding="utf-8") + f"\n\n{fault}\n")
    tasks = ["14.13", "14.2", "14.9"]
    result = run_hidden(phase, {broken: str(file)}, seed=1, tasks=tasks)
    failing = {test.task for test in result.tests if not test.passed}
    assert failing == {"14.13"}
    kinds = {test.detail["properties"].get("kind") for test in result.tests if not test.passed}
    assert kinds == {"crash" if "exit" in fault else "cannot import"}
    named = {test.detail["properties"].get("culprit") for test in result.tests if not test.passed}
    assert named == {"load.py"}


@pytest.mark.parametrize(
    ("body", "seconds", "why"),
    [
        ("raise MemoryError", 60.0, "memory"),
        ("return 'x' * 10**8", 60.0, "garbage"),
        ("return [0] * 10**8", 60.0, "garbage"),
        ("return ['x' * 10**7] * 10", 60.0, "garbage"),
        ("return [[0] * 10**6] * 10", 60.0, "garbage"),
        ("raise ValueError('x' * 10**8)", 60.0, "garbage"),
        ("raise KeyError('x' * 10**7, b'y' * 10**8)", 60.0, "garbage"),
        ("time.sleep(0.3)", 0.2, "timeout"),
    ],
)
def test_a_task_that_takes_too_much_is_over(
    monkeypatch: pytest.MonkeyPatch, body: str, seconds: float, why: str
) -> None:
    """Each answer is in time; but there may be hundreds of them."""
    monkeypatch.setattr(hidden, "TASK_SECONDS", seconds)
    phase = course().phase("00")
    text = f"import time\n\n\ndef slow():\n    {body}\n"
    sandbox = Sandbox(phase, contents(phase, text), isolation.LADDER["plain"])
    p = Program()
    p.see(p.call("mini_vllm.request:slow"))
    with hidden.Subject(phase, sandbox) as subject:
        for task in ("00.1", "00.2"):
            subject.enter(task)
            for _ in range(2):
                with pytest.raises(hidden.TaskLost):
                    for _ in range(20):
                        subject.run(p)
        assert subject.lost == dict.fromkeys(("00.1", "00.2"), why)
