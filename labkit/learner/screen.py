"""What `make lab-NN` shows: task by task, the first difference, where to read, what to type
next."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime

from labkit.course.console import MARKS, Screen, command, some, where_to_edit
from labkit.course.manifest import Exercise, Phase
from labkit.course.skeleton import kernels, left_todo
from labkit.course.source import Function
from labkit.inside.alarm import shorten
from labkit.judge import diagnose
from labkit.judge.diagnose import Problem
from labkit.judge.mistakes import Mutant
from labkit.judge.public import PhaseResult, Test
from labkit.judge.reused import Kept
from labkit.judge.suspects import place_of, root_of, source_line

SHOWN_PRINTS = 8
MAX_MESSAGE = 600


def kernel_tasks(phase: Phase) -> set[str]:
    """Tasks in which a learner writes a kernel."""
    return {task.id for task in kernels(phase).values()}


def tiers(result: PhaseResult) -> str:
    """The status line: what ran, what did not, what does not apply. A skip is never green."""
    passed, total = result.public
    parts = [f"public {passed}/{total}"]
    if result.notebook is not None:
        done, questions = result.answers
        parts.append(f"notebook {done}/{questions}")
    parts.append("hidden not run" if result.phase.hidden_tests.exists() else "hidden n/a")
    tasks = kernel_tasks(result.phase)
    tests = [test for test in result.tests if test.task in tasks]
    if not tests:
        parts += ["interpreter n/a", "GPU n/a"]
    elif result.phase.environment.get("TRITON_INTERPRET") == "1":
        parts += [f"interpreter {sum(test.passed for test in tests)}/{len(tests)}", "GPU not run"]
    else:
        parts += ["interpreter not run", "GPU not run"]
    return " · ".join(parts)


def show_header(screen: Screen, phase: Phase, whose: str) -> None:
    screen.line(f"lab-{phase.number} · {phase.title}", "bold")
    screen.line(f"judged: {whose}", "dim")
    screen.line()


def show_problem(screen: Screen, problem: Problem, tiers: bool = True) -> None:
    """Nothing could be judged, or run: say why, and what to do."""
    screen.line(f"✗ {problem.what}", "red")
    for line in problem.lines:
        screen.line(line, indent=2)
    screen.line()
    if tiers:
        screen.line("public not run · notebook not run · hidden not run")
    screen.line(f"next: {problem.todo}", "bold")


def show_untouched(screen: Screen, result: PhaseResult) -> None:
    """A fresh skeleton: each learner starts from red."""
    phase, first = result.phase, result.phase.exercises[0]
    screen.line("Nothing is written yet, so everything is still red. That is how it should be.")
    screen.line()
    for exercise in phase.exercises:
        names = some(exercise.functions)
        screen.line(f"○ {exercise.id} {exercise.title}  ({names})", "dim", 2)
    screen.line()
    screen.pair("read", f"phases/{phase.slug}/00-guide.md, then {first.read}", "", 0, 6)
    screen.pair("edit", where_to_edit(phase, first), "", 0, 6)
    screen.pair("then", command(phase, "lab"), "", 0, 6)
    screen.pair("stuck?", command(phase, "hint"), "", 0, 6)
    screen.line()
    screen.line(tiers(result), "bold")


def show_tasks(
    screen: Screen,
    result: PhaseResult,
    holes: Mapping[str, Sequence[Function]],
    mutant: Mutant | None,
    every: bool = False,
) -> None:
    """One line a task; the failing one to begin with in full, or with `every` all of them.

    `holes`: task -> its functions that are not written yet.
    """
    tasks = result.phase.exercises
    judged = [task for task in tasks if result.of_task(task)]  # of one asked for alone, no other
    failed = [task for task in judged if _status(result, task, holes) == "failed"]
    root = root_of(result, failed)
    for exercise in tasks:
        tests = result.of_task(exercise)
        missing = [hole.name for hole in holes.get(exercise.id, [])]
        if not tests and exercise.id not in holes:
            continue
        bad = next((t for t in tests if t.outcome in ("failed", "hang")), None)
        waiting = next((t for t in tests if t.outcome == "todo"), None)
        passed = sum(test.passed for test in tests)
        status = _status(result, exercise, holes)
        mark, style = MARKS[status]
        line = f"{mark} {exercise.id} {exercise.title}  ({passed} of {len(tests)})"
        if status == "open":
            begun = len(missing) < len(exercise.functions)
            left = f"{some(missing)} not written" if begun else "not written yet"
            line = f"{mark} {exercise.id} {exercise.title}  ({left})"
        elif status == "failed" and missing:
            count = f"{passed} of {len(tests)}; {some(missing)} not written"
            line = f"{mark} {exercise.id} {exercise.title}  ({count})"
        elif status == "not run":
            line = f"{mark} {exercise.id} {exercise.title}  (not run: an earlier test did not end)"
        elif status == "waiting" and waiting:
            itself = waiting.waits_for == exercise.id
            line += "  still ends in its TODO" if itself else f"  waits for {waiting.waits_for}"
        screen.line(line, style, 2)
        left = left_todo(result.phase, exercise) if status in ("open", "waiting") else ""
        if left:
            screen.line(f"delete the TODO below your code: {left}", "yellow", 6)
        if bad and status == "failed" and (every or exercise == root):
            fits = mutant if mutant and mutant.exercise == exercise.id else None
            show_failure(screen, result.phase, exercise, bad, fits, result.alone)
            if bad.outcome != "hang":
                _show_endless(screen, result.phase, tests)
    if len(failed) > 1 and not every:
        screen.line('one failing task is explained; ARGS="--all" explains each', "dim", 2)
    for test in result.tests:
        if not test.task and not test.passed:
            screen.line(f"✗ {test.name}: {test.detail.get('message', test.outcome)}", "red", 2)


def _show_endless(screen: Screen, phase: Phase, tests: Sequence[Test]) -> None:
    """That tests beside the one that is shown did not end: they are why all of it took so long."""
    endless = [test for test in tests if test.outcome == "hang"]
    if endless:
        count = len(endless)
        screen.line(f"and {count} other test{'s' * (count > 1)} did not end:", "yellow", 6)
        for line in diagnose.explain(endless[0], phase)[:2]:
            screen.line(line, "yellow", 8)


def _status(
    result: PhaseResult, exercise: Exercise, holes: Mapping[str, Sequence[Function]]
) -> str:
    missing = len(holes.get(exercise.id, ()))
    if result.task_passed(exercise) and not missing:
        return "passed"
    outcomes = {test.outcome for test in result.of_task(exercise)}
    if missing:  # where nothing is written, what fails is another task's
        wrong = missing < len(exercise.functions) and outcomes & {"failed", "hang"}
        return "failed" if wrong else "open"
    if outcomes and outcomes <= {"passed", "not run"}:
        return "not run"
    return "waiting" if outcomes <= {"passed", "todo"} and "todo" in outcomes else "failed"


def show_failure(
    screen: Screen,
    phase: Phase,
    exercise: Exercise,
    test: Test,
    mutant: Mutant | None,
    alone: Exercise | None = None,
) -> None:
    """The first difference in the learner's terms, then where to read and what to ask for.

    `alone`: the task, if no other was judged: `make hint-NN` would speak of the first of all.
    """
    detail = test.detail
    screen.line(f"✗ {test.title}", "red", 6)
    if "at" in detail:
        screen.line(f"first difference: {detail['at']}", indent=8)
        width = max([8, *(len(name) for name in detail["state"])])
        for name, value in detail["state"].items():
            screen.pair(name, value, width=width)
        question = diagnose.asked(test, phase)
        if question:
            screen.pair("asked", question, width=width)
        yours, expected = detail["types"]
        kinds = (f"  ({yours})", f"  ({expected})") if yours != expected else ("", "")
        screen.pair("yours", detail["yours"] + kinds[0], "red", width=width)
        screen.pair("expected", detail["expected"] + kinds[1], "green", width=width)
        if detail.get("differs"):
            screen.pair("differs", detail["differs"], "yellow", width=width)
    elif test.outcome != "hang":
        innermost = [frame[0] for frame in detail.get("frames", [])][-1:]
        own = any(file.startswith(str(phase.labs)) for file in innermost)
        for line in _short_message(detail, own):
            screen.line(line, indent=8)
        if wanted := diagnose.wanted_error(test, phase):
            screen.line(f"It should have raised {wanted}.", indent=8)
        if detail.get("given"):
            screen.pair("called", str(detail["given"]), width=8)
        elif detail.get("case"):
            screen.pair("case", str(detail["case"]), width=8)
    for line in diagnose.explain(test, phase):
        screen.line(line, "yellow", 8)
    place = place_of(test, phase)
    if place and test.outcome != "hang":
        code = shorten(source_line(phase.root / place[0], place[1]), 100)
        screen.line(f"in {place[2]}, {place[0]}:{place[1]}: {code}", indent=8)
    _show_prints(screen, detail)
    if mutant:
        screen.line(f"this looks like a known mistake: {mutant.misconception}", "yellow", 8)
    screen.pair("test", diagnose.test_line(test, phase), width=5)
    upstream = f" · upstream {exercise.upstream}" if exercise.upstream else ""
    screen.pair("read", f"phases/{phase.slug}/{exercise.read}{upstream}", width=5)
    screen.pair("hint", command(phase, "hint", alone), width=5)


def _short_message(detail: dict[str, object], own: bool = False) -> list[str]:
    """What the exception says, after its kind; a check's own words say enough without it.

    Args:
        own: whether it came out of the learner's file.
    """
    error, message = str(detail.get("error", "")), str(detail.get("message", ""))
    if error == "Failed" and (missed := message.partition("DID NOT RAISE ")[2]):
        return [f"It should have raised {missed}, and nothing was raised."]
    lines = shorten(message, MAX_MESSAGE).splitlines() or [""]
    if error and (own or error != "AssertionError"):
        lines[0] = f"{error}: {lines[0]}".removesuffix(": ")
    said = _compared([line for line in lines if line.strip()])[:8]
    return said[:-1] if len(said) > 1 and said[-1] == "assert False" else said


def _compared(said: list[str]) -> list[str]:
    """Of an assertion about an approximate number, which pytest says twice, the two numbers."""
    sides = [line.strip().partition(": ") for line in said[-2:]]
    if [name for name, *_ in sides] != ["Obtained", "Expected"]:
        return said
    first = next((n for n, line in enumerate(said) if line.startswith("assert ")), 0)
    return [*said[:first], f"yours    {sides[0][2]}", f"expected {sides[1][2]}"]


def _show_prints(screen: Screen, detail: dict[str, object]) -> None:
    printed = str(detail.get("printed", "")).splitlines()
    for line in printed[:SHOWN_PRINTS]:
        screen.line(f"│ {line[:120]}", "dim", 8)
    if len(printed) > SHOWN_PRINTS:
        screen.line(f"│ … {detail.get('printed_lines', len(printed))} lines", "dim", 8)


def show_notebook(screen: Screen, result: PhaseResult) -> None:
    """One line an answer; what is wrong with each that is wrong."""
    if not result.notebook:
        return
    screen.line(f"notebook labs/{result.phase.slug}/lab.ipynb", indent=2)
    for record in result.notebook:
        mark, style = MARKS.get(record["outcome"], MARKS["failed"])
        line = f"{mark} {record['task']} {record['title']}"
        if record["outcome"] == "todo":
            mark, style = MARKS["open"]
            line = f"{mark} {record['task']} {record['title']}  (not answered yet)"
        elif record["outcome"] == "missing":
            line += (
                "  (its cell is gone: undo the deletion, or restore the whole notebook with"
                f" `python -m labkit reset {result.phase.number} --notebook`, which keeps a backup)"
            )
        elif record["outcome"] != "passed":
            place = f" (line {record['line']} of the cell)" if record.get("line") else ""
            line += f"\n    {record['message']}{place}"
        screen.line(line, style, 4)


def show_kept(screen: Screen, kept: Kept | None) -> None:
    """What is green without having run now, in one line."""
    if not kept or not kept.since:
        return
    count = len(kept.tasks)
    parts = [f"{count} task{'s' * (count != 1)}"] if count else []
    answered = any(record["outcome"] == "passed" for record in kept.notebook or [])
    parts += ["the notebook"] if answered else []
    if not parts:
        return
    screen.line()
    since = f"unchanged since {_moment(kept.since)}, not run again"
    screen.line(f'{" and ".join(parts)}: {since}; ARGS="--all" runs everything', "dim")


def _moment(when: str) -> str:
    """The time of day, with the date if that is another one than today's."""
    moment = datetime.fromisoformat(when)
    today = moment.date() == datetime.now().date()
    return moment.strftime("%H:%M" if today else "%Y-%m-%d %H:%M")


def show_end(screen: Screen, result: PhaseResult, next_step: str) -> None:
    screen.line()
    stood = [line for line in result.stack.splitlines() if str(result.phase.root) in line]
    stood = [line.strip() for line in stood if not re.search("site-packages|/labkit/", line)]
    if stood:
        screen.line("The run was stopped as a whole; it stood here:", "yellow")
        screen.line("\n".join(stood[:6]), "dim", 2)
    if result.busy:
        screen.line("A thread still computes after the last test; a grade refuses that.", "yellow")
    screen.line(tiers(result), "bold green" if result.green else "bold")
    screen.line(f"next: {next_step}", "bold")
