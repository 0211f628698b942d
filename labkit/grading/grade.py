"""`make grade-NN`: the hidden suite of a phase, run on your modules.

Three processes trust each other in one direction only. This one holds the seed, the clock and the
result. It starts pytest, which holds the hidden tests and the reference's answers. pytest starts
workers in sandboxes (`labkit.sandbox.build`), which run the graded files and send plain data back.
Nothing of a submission is imported, or even parsed, by the first two.

Whatever a submission does to its worker costs it the task that was being judged. If it manages to
end pytest, the tasks that were not judged yet get a new one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import typer

from labkit.course.arguments import PHASE
from labkit.course.console import MARKS, Screen, command, polite, ready_phase
from labkit.course.files import set_aside
from labkit.course.manifest import Exercise, Phase
from labkit.course.state import State, fingerprint
from labkit.course.waiting import waiting
from labkit.grading import importing, result
from labkit.grading.result import GradeResult, GroupRecord, Seed, TestRecord
from labkit.grading.taken import Problem, Taken, clean, take
from labkit.judge import hidden, mistakes, public
from labkit.judge.hidden_suite import run_hidden
from labkit.judge.public import Follow, Test
from labkit.process import overlay
from labkit.sandbox import build as sandbox
from labkit.sandbox import isolation

FAILURES_BEFORE_REVEAL = 2
KIND_SAYS = {
    "wrong result": "a wrong result",
    "error": "your code raised an error",
    "open TODO": "a TODO is still open",
    "endless loop": f"no answer after {hidden.ANSWER_SECONDS:g} s of computing or sleeping",
    "timeout": "too slow",
    "crash": "the process died",
    "memory": "it ran out of memory",
    "garbage": "no readable answer",
    "replaced": "a name outside your files means something else than before",
    "cannot import": "your file cannot be imported",
    "missing file": "a file is missing",
    "not run": "not run",
}

ISOLATE = typer.Option(
    isolation.AUTO, "--isolation", help=f"one of {', '.join(isolation.LADDER)}; else it fails"
)


@dataclass
class Judged:
    """One grading, with what must not stand in its result.

    Attributes:
        result: what may be public.
        inputs: task -> title of the first test that failed, and its inputs as lines.
        failing: names of the tests that failed.
    """

    result: GradeResult
    inputs: dict[str, tuple[str, str]] = field(default_factory=dict)
    failing: frozenset[str] = frozenset()


@polite
def main(
    phase: str = PHASE,
    seed: int = typer.Option(None, help="repeat the run that had this seed"),
    reveal: bool = typer.Option(False, help="show seed and inputs of what failed now"),
    isolate: str = ISOLATE,
    result_file: Path = typer.Option(None, "--result", help="write the result there too"),
) -> None:
    """Run the hidden suite of a phase; exit code 0 only if all of it passes."""
    found = ready_phase(phase)
    mapping = overlay.mapping_for([found])
    files = {m: Path(mapping.get(m) or found.reference_file(m)) for m in found.modules}
    chosen = result.fresh_seed() if seed is None else seed
    texts = {task.id: fingerprint(found, task) for task in found.exercises}
    with waiting(f"grade-{found.number}") as follow:
        judged = judge(found, files, chosen, isolate, follow=follow)
    failures = failed_in_a_row(found, judged.result) if mapping else 0
    show(found, judged, reveal or seed is not None or failures >= FAILURES_BEFORE_REVEAL)
    if result_file:
        judged.result.write(result_file)
    if mapping:  # last: a disk that is full must not hide what was found out
        remember(found, judged.result, failures, texts)
    raise typer.Exit(0 if judged.result.passed else 1)


def grade_files(
    phase: Phase,
    files: Mapping[str, Path],
    seed: int | None = None,
    isolate: str = isolation.AUTO,
    refused: Mapping[str, Problem] = {},
) -> GradeResult:
    """Grade a submission, {module: file}. Nothing that its files hold or do raises; that they lie
    in the learner's own folder is for the caller to see to.

    Args:
        refused: module -> why its file is not taken, for those that the caller has looked at.

    Raises:
        ValueError: `isolate` is no rung, or does not work here; or the hidden suite is not here.
    """
    chosen = result.fresh_seed() if seed is None else seed
    return judge(phase, files, chosen, isolate, refused=refused).result


def judge(
    phase: Phase,
    files: Mapping[str, Path],
    seed: int,
    isolate: str = isolation.AUTO,
    tasks: Sequence[str] = (),
    refused: Mapping[str, Problem] = {},
    follow: Follow | None = None,
) -> Judged:
    """Grade a submission. A file that cannot be taken costs the tasks that are written in it; the
    others are judged with the reference's in its place.

    Args:
        tasks: only these, "03.2"; default: all.
        refused: as in `grade_files`.
        follow: told how far it is (`labkit.judge.public.run_tests`).

    Raises:
        ValueError: as `grade_files`.
    """
    begin = time.monotonic()
    need_suite(phase)
    rung, reasons = sandbox.choose_rung(phase, isolate)
    graded = _empty(phase, files, seed, rung)
    graded.unavailable = reasons
    judged = Judged(graded)
    wanted = [task for task in phase.exercises if not tasks or task.id in tasks]
    with set_aside() as folder:
        taken = take(phase, files, Path(folder), refused)
        graded.flags = taken.flags
        left = [task.id for task in wanted if task.module not in taken.refused]
        graded.isolation = rung.name if left else "none"
        tests = _run_tasks(phase, taken.mapping, seed, rung.name, left, follow)
        if _leave_out_what_cannot_be_imported(phase, taken, rung.name, tests):
            left = [task.id for task in wanted if task.module not in taken.refused]
            good = [test for test in tests if test.task in _passed(tests) & set(left)]
            lost = [task for task in left if task not in _passed(tests)]
            tests = good + _run_tasks(phase, taken.mapping, seed, rung.name, lost, follow)
        graded.problem = taken.problem
    _fill(phase, judged, tests, left)
    graded.groups += [refusal(t, taken.refused[t.module]) for t in wanted if t.id not in left]
    graded.groups.sort(key=lambda group: [task.id for task in wanted].index(group.id))
    graded.seed.value = seed
    graded.seconds = round(time.monotonic() - begin, 2)
    return judged


def need_suite(phase: Phase) -> None:
    """
    Raises:
        ValueError: the hidden suite is not in this checkout, so nothing can be judged.
    """
    if not any(phase.hidden_tests.glob("test_*.py")):
        raise ValueError(
            f"the hidden suite of phase {phase.number} is not here; `labkit unseal KEYFILE` opens"
            " a sealed one, and an instructor has it in tests/hidden"
        )


def _empty(
    phase: Phase, files: Mapping[str, Path], seed: int, rung: type[isolation.Rung]
) -> GradeResult:
    """A result before anything was run."""
    return GradeResult(
        phase=phase.slug,
        title=phase.title,
        submission=result.hash_submission(
            {phase.lab_file(module).name: path for module, path in files.items()}
        ),
        suite=result.hash_suite(phase.hidden_tests),
        seed=Seed(result.commitment(seed)),
        isolation=rung.name,
        tools=result.tool_versions(),
        groups=[],
        started=result.now(),
    )


def refusal(task: Exercise, problem: Problem) -> GroupRecord:
    """The record of a task whose file cannot be judged."""
    kind, hint = problem.kind, problem.text
    return GroupRecord(task.id, task.title, "failed", task.points, kind=kind, hint=hint)


# ---------------------------------------------------------------- the run
def _leave_out_what_cannot_be_imported(
    phase: Phase, taken: Taken, rung: str, tests: list[Test]
) -> bool:
    """Whether a file of several kept others from being imported: it is refused then, as one that
    is no Python is, and the others need another run."""
    failed = [test.detail.get("properties", {}).get("unusable", []) for test in tests]
    suspects = {module for names in failed for module in names}
    if not suspects or len(taken.mapping) == 1:
        return False
    found = importing.culprits(phase, taken.mapping, rung, suspects)
    for module in found:
        del taken.mapping[module]
    taken.refused |= found
    return bool(found)


def _passed(tests: list[Test]) -> set[str]:
    """The tasks of which all tests have passed."""
    return {test.task for test in tests} - {test.task for test in tests if not test.passed}


def _run_tasks(
    phase: Phase,
    mapping: dict[str, str],
    seed: int,
    rung: str,
    wanted: list[str],
    follow: Follow | None = None,
) -> list[Test]:
    """Run pytest until every wanted task is judged: once, unless a run ends before its time. Then
    the task that was running is lost, and those behind it get another run.
    """
    judged: list[Test] = []
    left = sorted(wanted)  # the order in which pytest runs them (`labkit.judge.hidden`)
    while left:
        outcome = run_hidden(phase, mapping, seed, left, rung=rung, base=clean(), follow=follow)
        tests = [test for test in outcome.tests if test.task in left]
        if outcome.broken or not tests:
            return [*judged, *_broken(left, outcome.broken or "no test was found")]
        unfinished = sorted({test.task for test in tests if test.outcome == "not run"})
        lost = {test.task for test in tests if test.outcome == "hang"} or set(unfinished[:1])
        left = [task for task in unfinished if task not in lost]
        for test in tests:
            if test.outcome == "not run" and test.task in lost:
                test.outcome, test.detail = "failed", {"properties": {"kind": "crash"}}
        judged += [test for test in tests if test.task not in left]
    return judged


def _broken(tasks: list[str], why: str) -> list[Test]:
    """Stand-ins for tests of a suite that did not load: the grader's fault."""
    detail: dict[str, object] = {"properties": {"kind": hidden.SANDBOX}, "message": why}
    title = "the suite did not load"
    return [Test(task, task, title, task, "failed", detail=detail) for task in tasks]


# ---------------------------------------------------------------- the verdict
def _fill(phase: Phase, judged: Judged, tests: list[Test], wanted: list[str]) -> None:
    """Turn what pytest reported into records."""
    graded = judged.result
    judged.failing = frozenset(test.name for test in tests if not test.passed)
    for test in tests:
        name = test.id.rpartition("/")[2]
        status = "passed" if test.passed else "failed"
        seconds = round(float(test.detail.get("seconds", 0.0)), 3)
        record = TestRecord(name, test.title, test.task, status, _kind(test), seconds)
        graded.tests.append(record)
        if _kind(test) == "error" and _is_ours(test):
            graded.status = "error"
            graded.problem = str(test.detail.get("message", ""))[-300:]
    for exercise in phase.exercises:
        if exercise.id in wanted:
            graded.groups.append(_group(phase, exercise, judged, tests))


def _is_ours(test: Test) -> bool:
    return bool(test.detail.get("properties", {}).get("kind") == hidden.SANDBOX)


def _kind(test: Test) -> str:
    """What sort of failure it was; the grader's own are "error"."""
    if test.passed:
        return ""
    if test.outcome == "skipped":
        return "not run"
    usual = "timeout" if test.outcome == "hang" else "wrong result"
    kind = str(test.detail.get("properties", {}).get("kind", usual))
    return "error" if kind == hidden.SANDBOX else kind


def _group(phase: Phase, exercise: Exercise, judged: Judged, tests: list[Test]) -> GroupRecord:
    own = [test for test in tests if test.task == exercise.id]
    bad = [test for test in own if not test.passed]
    passed = bool(own) and not bad
    record = GroupRecord(
        exercise.id,
        exercise.title,
        "passed" if passed else "failed" if own else "not run",
        exercise.points,
        exercise.points if passed else 0.0,
        passed=len(own) - len(bad),
        total=len(own),
        seconds=round(sum(float(test.detail.get("seconds", 0.0)) for test in own), 2),
    )
    if not passed:
        record.kind = _kind(bad[0]) if bad else "not run"
        properties = bad[0].detail.get("properties", {}) if bad else {}
        if name := properties.get("replaced"):
            record.hint = f"Your code sets {name}, or meddles with it. Leave it as it is."
        elif culprit := properties.get("culprit"):
            record.hint = f"Look at what {culprit} does when it is imported, outside its functions."
        else:
            record.hint = _hint(phase, exercise, record.kind, {test.name for test in bad})
        if bad:
            text = str(bad[0].detail.get("properties", {}).get("counterexample", ""))
            judged.inputs[exercise.id] = (bad[0].title, text)
    return record


def _hint(phase: Phase, exercise: Exercise, kind: str, failing: set[str]) -> str:
    """The misconception whose mutant fails just these tests of the task, if there is one; else the
    task's first hint."""
    if kind == "wrong result" and mistakes.vectors_file(phase).exists():
        vectors = json.loads(mistakes.vectors_file(phase).read_text(encoding="utf-8"))
        alike = [
            str(entry["misconception"]).strip()
            for entry in mistakes.entries(phase)
            if entry["exercise"] == exercise.id
            and failing == _of_task(vectors["hidden"].get(entry["name"], ()), exercise)
        ]
        if len(alike) == 1:  # another one may fail the same tests: it is a guess, and said as one
            return f"this looks like a known mistake: {alike[0]}"
    return exercise.hints[0]


def _of_task(names: Sequence[str], exercise: Exercise) -> set[str]:
    return {name for name in names if public.task_of(name) == exercise.id}


def failed_in_a_row(phase: Phase, graded: GradeResult) -> int:
    """Failed grades since the last passed one, this one among them."""
    failed = int(State(phase.root).get("grades", phase.slug, {}).get("failed", 0))
    if graded.status != "graded":
        return failed
    return 0 if graded.passed else failed + 1


def remember(phase: Phase, graded: GradeResult, failed: int, texts: Mapping[str, str]) -> None:
    """Keep the count of failed grades in the learner's own state file, and the result beside it.

    Args:
        texts: the fingerprint of each task's functions, from before the run: who edits while it
            runs has not been graded.
    """
    if graded.status == "graded":
        record = {"failed": failed, "points": [graded.earned, graded.points], "judged": texts}
        State(phase.root).put("grades", phase.slug, record)
    graded.write(phase.root / ".labkit" / "grades" / f"{phase.slug}.json")


# ---------------------------------------------------------------- the screen
def show(phase: Phase, judged: Judged, reveal: bool) -> None:
    """Task by task: status, kind of failure, authored hint; what failed first, what is not written
    last. Inputs, and what was expected where the reference was asked too, only if `reveal`."""
    out, graded = Screen(), judged.result
    show_seed = reveal or graded.passed
    seed = (
        f"seed {graded.seed.value}" if show_seed else f"seed sealed ({graded.seed.commitment[:12]})"
    )
    out.line(f"grade-{phase.number} · {phase.title} · {seed}", "bold")
    out.line(f"isolation: {isolation.spoken(graded.isolation, graded.unavailable)}", "dim")
    if graded.problem:
        out.line(graded.problem, "red")
    if graded.status == "error":
        out.line("The grader could not judge this. It is no fault of your code.", "bold")
        return
    for group in sorted(graded.groups, key=_place):
        _show_group(out, group, judged.inputs.get(group.id) if reveal else None)
    passed = sum(group.passed for group in graded.groups)
    total = sum(group.total for group in graded.groups)
    out.line()
    out.line(f"hidden {passed}/{total} · {graded.earned:g} of {graded.points:g} points", "bold")
    if graded.passed:
        out.line("Passed. It does not prove that every case works; it makes it likely.")
    elif reveal:
        again = f"python -m labkit grade {phase.number} --seed {graded.seed.value}"
        out.line(f"again with the same inputs: {again}   ·   {command(phase, 'hint')}")
    else:
        out.line(
            f"seed and inputs: after {FAILURES_BEFORE_REVEAL} failed grades, or with --reveal"
            f"   ·   {command(phase, 'hint')}"
        )


def _place(group: GroupRecord) -> int:
    """What failed comes first, and what is not written last; each in the order of the phase."""
    return 1 if group.status == "passed" else 2 if group.kind == "open TODO" else 0


def _show_group(out: Screen, group: GroupRecord, inputs: tuple[str, str] | None) -> None:
    if group.kind == "open TODO":
        mark, style = MARKS["open"]
        some = f"; {group.passed} of {group.total}" if group.passed else ""
        out.line(f"{mark} {group.id} {group.title}  (a TODO is still open{some})", style, 2)
        return
    mark, style = MARKS["passed" if group.status == "passed" else "failed"]
    counts = f"({group.passed} of {group.total})" if group.total else ""
    out.line(f"{mark} {group.id} {group.title}  {counts}".rstrip(), style, 2)
    if group.status == "passed":
        return
    out.line(KIND_SAYS.get(group.kind, group.kind), indent=6)
    if group.hint and group.total:  # else it is the problem, which stands above
        out.line(f"hint: {group.hint}", "yellow", 6)
    if inputs:
        title, lines = inputs
        out.line(f"for example: {title}", indent=6)
        out.line(lines, "dim", 8)
