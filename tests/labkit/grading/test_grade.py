"""`labkit grade`: what is judged, what is written down, and what a learner gets to see."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console

from labkit.course import files
from labkit.course.console import course
from labkit.course.manifest import Phase
from labkit.course.skeleton import skeleton
from labkit.course.waiting import far, waiting
from labkit.grading import grade, likeness, result, taken
from labkit.grading.grade import Judged
from labkit.grading.result import GroupRecord
from labkit.judge import hidden, mistakes, public
from labkit.judge.public import PhaseResult
from labkit.sandbox import isolation
from labkit.sandbox.build import Sandbox
from labkit.sandbox.isolation import LADDER
from tests.labkit.hand_in import beside, contents
from tests.labkit.toy_course import make_course

ROOT = Path(__file__).parents[3]


@pytest.fixture
def phase() -> Phase:
    return course().phase("00")


def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "labkit", "grade", *words],
        cwd=ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=300,
    )


def submit(phase: Phase, folder: Path, text: str) -> dict[str, Path]:
    """A submission of phase 00: its first file, beside the reference's others."""
    file = folder / "request.py"
    file.write_text(text, encoding="utf-8")
    return beside(phase, file)


def untouched(phase: Phase, folder: Path) -> dict[str, Path]:
    """A submission in which nothing is written yet."""
    files = {module: folder / phase.lab_file(module).name for module in phase.modules}
    for module, file in files.items():
        file.write_text(skeleton(phase, module), encoding="utf-8")
    return files


def test_the_reference_gets_all_points_and_is_flagged_as_itself(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    done = run("00", "--seed", "7", "--result", str(file), LAB="reference")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "seed 7" in done.stdout
    assert "hidden 25/25 · 50 of 50 points" in done.stdout
    graded = result.load(file)
    assert (graded.passed, graded.problem, graded.seed.value) == (True, "", 7)
    assert graded.seed.commitment == result.commitment(7)
    assert {flag.where for flag in graded.flags if flag.kind == "same as the reference"} == {
        f"{file}: {name}"
        for module, file in (("request", "request.py"), ("engine.step", "step.py"))
        for name in course().phase("00").holes(f"mini_vllm.{module}")
    }


def test_a_skeleton_gets_none_and_hears_why(
    phase: Phase, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = untouched(phase, tmp_path)
    judged = grade.judge(phase, files, seed=71717)
    graded = judged.result
    assert [g.kind for g in graded.groups] == ["open TODO"] * 5
    assert [g.hint for g in graded.groups] == [task.hints[0] for task in phase.exercises]
    assert (graded.earned, len(graded.tests), graded.flags) == (0, 25, [])

    grade.show(phase, judged, reveal=False)
    sealed = capsys.readouterr().out
    assert sealed.count("(a TODO is still open)") == 5 and "✗" not in sealed
    assert "hint:" not in sealed, "a task that is not written has not failed"
    assert "71717" not in sealed and "RequestStatus" not in sealed, "no seed, no inputs"

    grade.show(phase, judged, reveal=True)
    shown = capsys.readouterr().out
    assert "--seed 71717" in shown
    assert "request.RequestStatus.is_finished" in judged.inputs["00.1"][1]


def test_what_failed_stands_first_and_what_is_not_written_last(
    phase: Phase, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = {"00.1": "open TODO", "00.2": "", "00.3": "wrong result", "00.4": "open TODO"}
    groups = [
        GroupRecord(
            name, "a title", "failed" if kind else "passed", 5, kind=kind, total=2, hint="h"
        )
        for name, kind in kinds.items()
    ]
    graded = grade._empty(phase, {}, 1, LADDER["plain"])
    graded.groups = groups
    grade.show(phase, Judged(graded), reveal=False)
    shown = [line.split()[:2] for line in capsys.readouterr().out.splitlines() if "00." in line]
    assert shown == [["✗", "00.3"], ["✓", "00.2"], ["○", "00.1"], ["○", "00.4"]]


def test_a_line_says_how_far_a_grade_is(tmp_path: Path) -> None:
    report = tmp_path / "report.jsonl"
    assert far(report) == ""
    events: list[dict[str, str]] = [
        {"event": "collected", "id": name, "name": name}
        for name in ("test_12_1_a", "test_12_10_b", "test_12_10_c")
    ]
    events.append({"event": "done", "id": "test_12_1_a", "outcome": "passed"})
    report.write_text("".join(json.dumps(event) + "\n" for event in events) + '{"event": "do')
    assert far(report) == "1 of 3 tests, now 12.10"

    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with waiting("grade-12", console) as follow:
        follow(report)
    assert "grade-12: 1 of 3 tests, now 12.10 · 0 s" in console.file.getvalue()  # type: ignore[attr-defined]


def test_an_import_that_the_machine_ended_is_tried_once_more(
    phase: Phase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short of memory, the kernel ends a worker first: no file is to blame for that."""
    module = phase.modules[0]
    honest, ends = hidden.Subject._import, [1]

    def kill_first(self: hidden.Subject, modules: list[str], seconds: float) -> None:
        if modules == [module] and ends:
            ends.pop()
            self._process.kill()
        honest(self, modules, seconds)

    monkeypatch.setattr(hidden.Subject, "_import", kill_first)
    text = phase.reference_file(module).read_bytes()
    box = Sandbox(phase, contents(phase, text), LADDER["plain"])
    with hidden.Subject(phase, box) as subject:
        assert isinstance(subject, hidden.Subject)
        subject.enter("00.1")
        assert subject.call("labkit.inside.basic:ping") == "pong"
        assert (subject.unusable, subject.died, subject.starts) == ({}, {module}, 2)


def test_a_file_that_cannot_be_imported_is_named(phase: Phase, tmp_path: Path) -> None:
    files = submit(phase, tmp_path, "import no_such_module\n")
    (group,) = grade.judge(phase, files, seed=1, isolate="plain", tasks=["00.1"]).result.groups
    assert (group.kind, group.earned) == ("cannot import", 0)
    assert group.hint == (
        "request.py raises ModuleNotFoundError in line 1 when it is imported; its tasks are lost,"
        " and for the others the reference's file stands in"
    )


def test_a_machine_without_isolation_says_so_and_sets_no_flag(
    phase: Phase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """As on a runner whose user may neither make namespaces nor change its uid."""
    for rung in (isolation.Bubblewrap, isolation.Namespaces, isolation.OtherUid):
        monkeypatch.setattr(rung, "missing", lambda self: f"{self.name} is forbidden here")
    files = untouched(phase, tmp_path)
    judged = grade.judge(phase, files, seed=7, tasks=["00.1"])
    graded = judged.result
    assert (graded.isolation, graded.flags) == ("plain", [])
    assert list(graded.unavailable) == ["container", "namespaces", "other-uid"]
    assert [group.kind for group in graded.groups] == ["open TODO"]
    grade.show(phase, judged, reveal=False)
    shown = capsys.readouterr().out
    assert "isolation: plain, which hides nothing: for practice only" in shown
    assert "namespaces: namespaces is forbidden here" in shown


def test_a_known_mistake_is_answered_with_its_misconception(phase: Phase, tmp_path: Path) -> None:
    mutant = next(m for m in mistakes.load(phase) if m.exercise == "00.2")
    files = submit(phase, tmp_path, mutant.text)
    judged = grade.judge(phase, files, seed=3, tasks=["00.2"])
    (group,) = judged.result.groups
    assert (group.status, group.kind) == ("failed", "wrong result")
    known = {f"this looks like a known mistake: {m.misconception}" for m in mistakes.load(phase)}
    assert group.hint in known | {phase.exercise("00.2").hints[0]}
    title, lines = judged.inputs["00.2"]
    assert title and "# yours: " in lines
    expected = "num_tokens_with_spec"
    assert expected in lines


@pytest.mark.parametrize(
    ("make", "problem", "kind"),
    [
        (lambda file: None, "request.py is missing", "missing file"),
        (lambda file: file.mkdir(), "request.py is a link or no file", "cannot import"),
        (
            lambda file: file.symlink_to(ROOT / "mini_vllm" / "request.py"),
            "request.py is a link or no file",
            "cannot import",
        ),
        (lambda file: os.mkfifo(file), "request.py is a link or no file", "cannot import"),
        (lambda file: file.write_bytes(b"#" * (2 << 20)), "has 2097152 bytes", "cannot import"),
        (
            lambda file: file.write_text("x = 1\ndef (:\n"),
            "request.py: SyntaxError, line 2",
            "cannot import",
        ),
        (lambda file: file.write_bytes(b"\x00\xff"), "request.py: ", "cannot import"),
        (lambda file: file.write_text("-" * 300_000 + "1"), "", "cannot import"),
    ],
    ids=["missing", "folder", "link", "fifo", "large", "syntax", "bytes", "deep"],
)
def test_what_cannot_be_taken_is_named_and_nothing_runs(
    phase: Phase, tmp_path: Path, make: Any, problem: str, kind: str
) -> None:
    files = {module: tmp_path / phase.lab_file(module).name for module in phase.modules}
    for file in files.values():
        make(file)
    graded = grade.grade_files(phase, files, seed=1, isolate="plain")
    assert graded.problem and problem in graded.problem
    assert (graded.status, graded.earned, graded.tests) == ("graded", 0, [])
    assert {group.kind for group in graded.groups} == {kind}


def hand_in(phase: Phase, folder: Path, **broken: str | None) -> dict[str, Path]:
    """The reference's files of a phase, but for those named: another text, or None for no file."""
    files = {m: folder / phase.lab_file(m).name for m in phase.modules}
    for module, file in files.items():
        text = broken.get(file.stem, phase.reference_file(module).read_text(encoding="utf-8"))
        if text is not None:
            file.write_text(text, encoding="utf-8")
    return files


@pytest.mark.parametrize(
    ("text", "kind", "problem"),
    [
        ("x = 1\ny = (1,\n", "cannot import", "roofline.py: SyntaxError, line 2"),
        (None, "missing file", "roofline.py is missing: hand it in"),
    ],
    ids=["syntax", "missing"],
)
def test_a_file_that_cannot_be_taken_costs_its_own_tasks_alone(
    tmp_path: Path, text: str | None, kind: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    phase = course().phase("01")
    files = hand_in(phase, tmp_path, roofline=text)
    judged = grade.judge(phase, files, seed=3, isolate="plain")
    graded = judged.result
    lost = {task.id for task in phase.exercises if task.module.endswith("roofline")}
    assert 0 < len(lost) < len(phase.exercises)
    assert {g.id: g.kind for g in graded.groups if g.status != "passed"} == dict.fromkeys(
        lost, kind
    )
    assert [group.id for group in graded.groups] == [task.id for task in phase.exercises]
    assert graded.earned == sum(t.points for t in phase.exercises if t.id not in lost)
    assert graded.problem.startswith(problem)
    assert not [flag for flag in graded.flags if "roofline" in flag.where]
    grade.show(phase, judged, reveal=False)
    assert capsys.readouterr().out.count(graded.problem) == 1


AT_IMPORT = {
    "raises": ("\n\n1 / 0\n", "cannot import", "raises ZeroDivisionError in line {end}"),
    "says more": (
        "\n\nclass Points(Exception):\n    pass\n\n\nraise Points('=10 of 10')\n",
        "cannot import",
        "raises an exception in line {end}",
    ),
    "exits": ("\n\nimport sys\nsys.exit(0)\n", "cannot import", "raises SystemExit in line {end}"),
    "dies": ("\n\nimport os\nos._exit(0)\n", "crash", "ends the whole process"),
    "hangs": ("\n\nwhile True:\n    pass\n", "endless loop", "does not end"),
}


@pytest.mark.parametrize(("slip", "kind", "said"), AT_IMPORT.values(), ids=AT_IMPORT)
@pytest.mark.slow
def test_a_file_that_cannot_be_imported_costs_its_own_tasks_alone(
    tmp_path: Path, slip: str, kind: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The scheduler imports the queue, so its tasks were lost with it."""
    phase = course().phase("03")
    queue = "mini_vllm.core.request_queue"
    text = phase.reference_file(queue).read_text(encoding="utf-8") + slip
    files = hand_in(phase, tmp_path, request_queue=text)
    judged = grade.judge(phase, files, seed=3, isolate="plain", tasks=["03.1", "03.2"])
    assert [(g.id, g.status, g.kind) for g in judged.result.groups] == [
        ("03.1", "failed", kind),
        ("03.2", "passed", ""),
    ]
    said = said.format(end=text.count("\n"))
    assert judged.result.problem == (
        f"request_queue.py {said} when it is imported; its tasks are lost, and for the others the"
        " reference's file stands in"
    )
    grade.show(phase, judged, reveal=False)
    assert capsys.readouterr().out.count(judged.result.problem) == 1


def test_a_name_that_others_import_is_missed_in_the_file_that_lacks_it(tmp_path: Path) -> None:
    phase = course().phase("03")
    text = phase.reference_file("mini_vllm.core.request_queue").read_text(encoding="utf-8")
    files = hand_in(phase, tmp_path, request_queue=f"{text}\ndel create_request_queue\n")
    graded = grade.judge(phase, files, 3, "plain", ["03.1", "03.2"]).result
    assert [group.status for group in graded.groups] == ["failed", "passed"]
    assert "request_queue.py lacks a name that scheduler.py imports from it;" in graded.problem


@pytest.mark.slow
def test_a_file_that_cannot_be_imported_gains_no_points(tmp_path: Path) -> None:
    """Neither the tasks of that file, nor those of one that is wrong itself, nor by a file that
    can be imported where it is tried alone."""
    phase = course().phase("03")
    queue, scheduler = phase.modules
    theirs = {m: phase.reference_file(m).read_text(encoding="utf-8") for m in phase.modules}
    raises, blank = "\n\n1 / 0\n", skeleton(phase, scheduler)
    spared = "\nfrom pathlib import Path\nif 'TODO' in Path(__file__).with_name('scheduler.py')"
    spared += ".read_text():\n    1 / 0\n"
    for mine, other in [
        (theirs[queue] + raises, blank),
        (theirs[queue] + raises, theirs[scheduler] + raises),
        (theirs[queue] + spared, blank),
    ]:
        files = hand_in(phase, tmp_path, request_queue=mine, scheduler=other)
        graded = grade.judge(phase, files, 3, "plain", ["03.1", "03.2"]).result
        assert (graded.earned, {group.status for group in graded.groups}) == (0, {"failed"})


def test_files_that_import_a_broken_one_run_beside_the_references(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A submission that Python cannot read gets no points, whatever the reference would."""
    phase = course().phase("02")
    asked: list[tuple[set[str], list[str]]] = []

    def fake(_: Phase, mapping: dict[str, str], __: int, tasks: list[str], **___: Any) -> Any:
        asked.append((set(mapping), list(tasks)))
        return PhaseResult(phase, [public.Test(t, f"test_{t}", t, t, "passed") for t in tasks])

    monkeypatch.setattr(grade, "run_hidden", fake)
    pool = "mini_vllm.core.block_pool"
    files = hand_in(phase, tmp_path, block_pool="x = (")
    graded = grade.grade_files(phase, files, seed=1, isolate="plain")
    kept = [task.id for task in phase.exercises if task.module != pool]
    assert asked.pop() == (set(phase.modules) - {pool}, kept)
    assert 0 < graded.earned == sum(phase.exercise(task).points for task in kept)

    nothing = dict.fromkeys((file.stem for file in files.values()), "x = (")
    files = hand_in(phase, tmp_path, **nothing)
    graded = grade.grade_files(phase, files, seed=1, isolate="plain")
    assert (asked, graded.earned, graded.isolation) == ([], 0, "none")


def test_a_missing_file_is_not_the_references(phase: Phase, tmp_path: Path) -> None:
    refused = dict.fromkeys(phase.modules, taken.Problem("missing file", "request.py is a link"))
    graded = grade.grade_files(phase, {}, seed=1, isolate="plain", refused=refused)
    assert (graded.problem, graded.earned) == ("request.py is a link", 0)
    assert {group.kind for group in graded.groups} == {"missing file"}


def first_file(phase: Phase, files: dict[str, Path]) -> result.GradeResult:
    """Grade the tasks of the phase's first file alone."""
    tasks = [task.id for task in phase.exercises if task.module == phase.modules[0]]
    return grade.judge(phase, files, seed=1, isolate="plain", tasks=tasks).result


def nested(levels: int, *lines: str) -> str:
    """`try` in `try`; the last line of each level opens the next."""
    text = "def f():\n"
    for level in range(1, levels + 1):
        *within, last = lines
        text += f"{' ' * level}try:\n" + "".join(f"{' ' * level} {x}\n" for x in within or ["1"])
        text += f"{' ' * level}{last}\n"
    return f"{text}{' ' * (levels + 1)}pass\n"


BOMBS = {
    "brackets": "x = " + "(" * 100_000 + ")" * 100_000,
    "sum": "x = " + "1+" * 500_000 + "1",
    "same name": "def f(): pass\n" * 70_000,
    "comprehension": "x = [" + "a " + "for a in b " * 90_000 + "]",
    "finally": nested(19, "finally:"),
    "finally with returns": nested(12, *["if a: return b"] * 4, "finally:"),
    "one hash": f"x = {{{', '.join(str(n * (2**61 - 1)) for n in range(40_000))}}}",
}
"""What Python's parser or compiler refuses, or takes half a minute, gigabytes or its own life for:
it writes down what is in a `finally` once for each way out, and compares numbers of one hash with
one another."""


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_a_text_that_costs_the_parser_too_much_is_named_and_bounded(
    phase: Phase, tmp_path: Path, text: str
) -> None:
    begin = time.monotonic()
    graded = first_file(phase, submit(phase, tmp_path, text))
    assert graded.problem.startswith("request.py: ") and "several statements" in graded.problem
    assert (graded.earned, {group.kind for group in graded.groups}) == (0, {"cannot import"})
    assert time.monotonic() - begin < 60


def test_when_pytest_dies_the_running_task_is_lost_and_the_others_go_on(
    phase: Phase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report names all tests in the files' order, also those that this run leaves out."""
    runs: list[list[str]] = []
    order = ["00.1", "00.4", "00.2", "00.3", "00.4"]

    def fake(phase: Phase, _: Any, __: int, tasks: list[str], **___: Any) -> PhaseResult:
        assert len(runs) < 3, "it makes no progress"
        runs.append(list(tasks))
        tests = [public.Test(f"{i}", f"test_{i}", t, t, "not run") for i, t in enumerate(order)]
        for test in tests:
            test.outcome = "passed" if test.task in tasks and test.task < "00.2" else test.outcome
            if tasks[0] > "00.2":  # it dies in 00.2, and again in the second test of 00.4
                test.outcome = "not run" if test.id == "4" or test.task not in tasks else "passed"
        return PhaseResult(phase, tests)

    monkeypatch.setattr(grade, "run_hidden", fake)
    tests = grade._run_tasks(phase, {}, 1, "plain", sorted(set(order)))
    assert runs == [["00.1", "00.2", "00.3", "00.4"], ["00.3", "00.4"]]
    assert [(t.id, t.task, t.outcome, grade._kind(t)) for t in tests] == [
        ("0", "00.1", "passed", ""),
        ("2", "00.2", "failed", "crash"),
        ("1", "00.4", "passed", ""),
        ("3", "00.3", "passed", ""),
        ("4", "00.4", "failed", "crash"),
    ]


def test_when_the_time_is_over_only_the_running_task_is_lost(
    phase: Phase, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[list[str]] = []

    def fake(phase: Phase, _: Any, __: int, tasks: list[str], **___: Any) -> PhaseResult:
        outcomes = {"00.1": "passed", "00.2": "passed", "00.3": "not run", "00.4": "not run"}
        if not runs:  # the first run ends in its second task
            outcomes["00.2"] = "hang"
        else:
            outcomes = dict.fromkeys(outcomes, "passed")
        runs.append(list(tasks))
        return PhaseResult(
            phase, [public.Test(t, f"test_{t}", t, t, o) for t, o in outcomes.items()]
        )

    monkeypatch.setattr(grade, "run_hidden", fake)
    tests = grade._run_tasks(phase, {}, 1, "plain", ["00.1", "00.2", "00.3", "00.4"])
    assert runs == [["00.1", "00.2", "00.3", "00.4"], ["00.3", "00.4"]]
    kinds = {test.task: grade._kind(test) for test in tests}
    assert kinds == {"00.1": "", "00.2": "timeout", "00.3": "", "00.4": ""}


def test_a_suite_that_does_not_load_is_the_graders_fault(
    phase: Phase, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any, **__: Any) -> PhaseResult:
        return PhaseResult(phase, [], broken="no module named oracle")

    monkeypatch.setattr(grade, "run_hidden", broken)
    files = beside(phase, phase.reference_file(phase.modules[0]))
    judged = grade.judge(phase, files, seed=1, isolate="plain")
    assert (judged.result.status, judged.result.passed) == ("error", False)
    assert "no module named oracle" in judged.result.problem
    grade.show(phase, judged, reveal=False)
    shown = capsys.readouterr().out
    assert "no fault of your code" in shown and "no module named oracle" in shown
    assert "your code raised" not in shown


def test_without_its_suite_a_phase_is_not_judged(phase: Phase, tmp_path: Path) -> None:
    """As in a student's tree, where the suites are sealed."""
    moved = replace(phase, root=tmp_path)
    with pytest.raises(ValueError, match="hidden suite of phase 00 is not here; `labkit unseal"):
        grade.judge(moved, {}, seed=1)


def test_two_failures_open_the_seed_and_a_pass_closes_it_again(
    phase: Phase, tmp_path: Path
) -> None:
    moved = replace(phase, root=tmp_path)
    failed = result.GradeResult(
        phase.slug, "", {}, "", result.Seed("c", 1), "plain", {}, [
            result.GroupRecord("00.1", "", "failed", 5, kind="error")
        ],
    )  # fmt: skip
    passed = replace(failed, groups=[result.GroupRecord("00.1", "", "passed", 5, 5)])
    graded = [failed, failed, passed, failed, replace(failed, status="error")]
    counts = []
    for one in graded:
        counts.append(grade.failed_in_a_row(moved, one))
        grade.remember(moved, one, counts[-1], {})
    assert counts == [1, 2, 0, 1, 1]


def test_a_full_disk_does_not_hide_a_grade(
    phase: Phase, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The suite has run for minutes, and nothing can be written down any more."""
    graded = result.GradeResult(
        phase.slug, "", {}, "", result.Seed("c", 1), "plain", {}, [
            result.GroupRecord("00.1", "", "passed", 5, 5)
        ],
    )  # fmt: skip

    def full(*words: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(grade, "judge", lambda *words, **options: grade.Judged(graded))
    monkeypatch.setattr(grade.State, "put", full)
    monkeypatch.delenv("LAB", raising=False)
    with pytest.raises(typer.Exit) as end:
        grade.main("00", seed=None, reveal=False, isolate="plain", result_file=None)
    told = capsys.readouterr()
    assert "5 of 5 points" in told.out and "the disk is full" in told.err
    assert end.value.exit_code == 2


def test_seeds_are_fresh_and_promised(phase: Phase, tmp_path: Path) -> None:
    files = {module: tmp_path / phase.lab_file(module).name for module in phase.modules}
    seeds = [grade.grade_files(phase, files, isolate="plain").seed for _ in range(3)]
    assert len({seed.value for seed in seeds}) == 3
    assert all(result.commitment(seed.value or 0) == seed.commitment for seed in seeds)


def _same(phase: Phase, folder: Path) -> set[str]:
    """The functions whose trees are the reference's."""
    return {row[0] for row in likeness.compare(phase, phase.modules[0], folder)["same"]}


def test_likeness_looks_at_the_tree_not_at_the_text(phase: Phase, tmp_path: Path) -> None:
    text = phase.reference_file(phase.modules[0]).read_text(encoding="utf-8")
    (tmp_path / "request.py").write_text(text.replace("return ", "return  "), encoding="utf-8")
    whole = _same(phase, tmp_path)
    assert whole == set(phase.holes(phase.modules[0]))
    one = mistakes.load(phase)[0]
    (tmp_path / "request.py").write_text(one.text, encoding="utf-8")
    assert _same(phase, tmp_path) == whole - {one.function}


@pytest.mark.parametrize(
    "statement",
    [
        "x = 0x" + "f" * 9000,
        "x = 1" + " + 1" * 900,
        "if status == 0:\n            pass\n"
        + "".join(f"        elif status == {n}:\n            pass\n" for n in range(100, 700)),
    ],
    ids=["number", "sum", "elif"],
)
def test_a_long_right_function_is_compared_and_not_refused(
    phase: Phase, tmp_path: Path, statement: str
) -> None:
    """As Python itself does: no chain is too long for it, and no number, unless it is written in
    decimal digits."""
    text = phase.reference_file(phase.modules[0]).read_text(encoding="utf-8")
    body = "        return RequestStatus.WAITING < status"
    assert text.count(body) == 1
    (tmp_path / "request.py").write_text(text.replace(body, f"        {statement}\n{body}"))
    assert likeness.compare(phase, phase.modules[0], tmp_path)["broken"] == ""
    assert "RequestStatus.is_blocked" not in _same(phase, tmp_path)


def test_variables_that_steer_pytest_do_not_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTHONSTARTUP", "HYPOTHESIS_PROFILE"):
        monkeypatch.setenv(name, "anything")
    assert not [name for name in taken.clean() if name.startswith(("PYTEST_", "HYPOTHESIS_"))]
    assert taken.clean()["PYTHONSAFEPATH"] == "1"


def test_a_planned_phase_says_what_is_coming(tmp_path: Path) -> None:
    make_course(tmp_path)
    done = run("01", LABKIT_ROOT=str(tmp_path))
    assert done.returncode == 1
    assert "not built yet" in done.stdout and "a clock" in done.stdout


def test_an_unknown_rung_is_named(phase: Phase) -> None:
    with pytest.raises(ValueError, match="isolation is 'vault'; it must be one of auto, container"):
        grade.grade_files(phase, {}, seed=1, isolate="vault")


def test_a_test_belongs_to_a_task() -> None:
    assert public.task_of("test_00_2_counts_match") == "00.2"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\ny =\ufeff 2\n", "line 2 holds the character U+FEFF"),
        ("x = “one”\n", "line 1 holds the character U+201C"),
        ("x = 1\n\x1a", "line 2 holds the character U+001A"),
        ("x = 1\n\ny = " + "9" * 5000, "line 3 holds a number of more digits than Python reads"),
        ("x = " + "(" * 300 + ")" * 300, "line 1 nests too deeply"),
        ("x = " + "-" * 100_000 + "1", "it nests too deeply"),
        ("x = 1\nsecret secret\n", "SyntaxError, line 2: invalid syntax; mend that line"),
        ("x = 1\nreturn 2\n", "SyntaxError, line 2: 'return' outside function; mend that line"),
        ("x = 1\ny = (\n", "SyntaxError, line 2: '(' was never closed; mend that line"),
        ("def f(secret, secret):\n    pass\n", "SyntaxError, line 1; mend that line"),
        ("# nothing\n\n", "it is empty: hand in the file that you have written"),
        ("# encoding: klingon\n", "line 1 declares the encoding 'klingon'"),
        ("x = 1\f\n#\n# encoding: the tokens\nsecret\f secret\n", "SyntaxError, line 4"),
    ],
    ids=[
        "mark",
        "quotes",
        "ctrl-z",
        "digits",
        "parentheses",
        "minus",
        "usual",
        "tree",
        "open",
        "name",
        "empty",
        "coding",
        "form-feed",
    ],
)
def test_a_file_that_is_no_python_is_told_why_in_our_words(
    phase: Phase, tmp_path: Path, text: str, said: str
) -> None:
    graded = first_file(phase, submit(phase, tmp_path, text))
    assert graded.problem.startswith(f"request.py: {said}"), graded.problem
    assert "secret" not in graded.problem


def test_what_a_killed_grader_has_put_aside_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not the folder of one that lives, nor one that is just being made."""
    pytest.importorskip("fcntl")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    old = tmp_path / f"{files.ASIDE}old"
    (old / "scratch").mkdir(parents=True)
    fresh = tmp_path / f"{files.ASIDE}fresh"
    fresh.mkdir()
    os.utime(old, (0, 0))
    with files.set_aside() as first:
        os.utime(first, (0, 0))
        with files.set_aside() as second:
            assert set(tmp_path.iterdir()) == {fresh, Path(first), Path(second)}
    assert list(tmp_path.iterdir()) == [fresh]
