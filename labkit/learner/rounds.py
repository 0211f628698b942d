"""One round of the loop: judge a phase, show what was found, say what to do next, remember it.

`make lab-NN` runs it in a terminal, the book's pages in a browser's tab (`labkit.tab.driver`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from labkit.course import source, unfinished
from labkit.course.console import Screen, command, course, some, where_to_edit
from labkit.course.files import read_as_utf8
from labkit.course.manifest import HINT_LEVELS, Exercise, ManifestError, Phase
from labkit.course.skeleton import left_todo, open_holes, skeleton
from labkit.course.state import State, fingerprint
from labkit.judge import diagnose, mistakes, public
from labkit.judge.reused import Verdicts
from labkit.judge.suspects import place_to_edit, root_of, suspects
from labkit.learner import hints, screen
from labkit.process import overlay


def judge_and_show(
    phase: Phase,
    labs: str = "",
    task: str = "",
    every: bool = False,
    out: Screen | None = None,
    keeps: bool = True,
) -> bool:
    """One round of the loop on the screen; True if everything is green.

    Args:
        keeps: what has passed, and has not changed, does not run again.
    """
    out = out or Screen()
    only = phase.exercise(task) if task else None
    chosen = phases_in(labs, phase)
    mapping = overlay.mapping_for(chosen)
    folders = ", ".join(f"labs/{other.slug}" for other in chosen)
    whose = f"yours, {folders}" if mapping else "the reference (LAB=reference)"
    screen.show_header(out, phase, whose)
    problem = next(filter(None, map(diagnose.before, chosen)), None) if mapping else None
    if problem:
        screen.show_problem(out, problem)
        show_notices(out, phase)
        return False
    verdicts = Verdicts(phase, mapping) if mapping and keeps else None
    kept = verdicts.unchanged() if verdicts and not every and not only else None
    result = public.judge(phase, mapping, task=only, kept=kept)
    if result.broken:
        screen.show_problem(out, diagnose.import_problem(phase, result.broken))
        show_notices(out, phase)
        return False
    holes = open_holes(phase) if mapping else {}
    if only:
        holes = {name: functions for name, functions in holes.items() if name == only.id}
    left = sum(map(len, holes.values()))
    begun = any(record["outcome"] != "todo" for record in result.notebook or [])
    match = None
    if left == sum(len(task.functions) for task in phase.exercises) and not begun:
        screen.show_untouched(out, result)
    else:
        match = mistakes.named(result, mapping) if mapping else None
        screen.show_tasks(out, result, holes, match, every)
        screen.show_notebook(out, result)
        screen.show_kept(out, kept)
        screen.show_end(out, result, next_step(result, holes, match))
    show_notices(out, phase)
    if mapping:  # last: a disk that is full must not hide what was found out
        remember(phase, result, match, wrong_tasks(result, holes))
    if verdicts:
        public.keep(verdicts, result)
    return result.green and not holes


def phases_in(labs: str, phase: Phase | None = None) -> list[Phase]:
    """The phases named in "02,03", and `phase`."""
    known = course()
    chosen = [known.phase(name.strip()) for name in labs.split(",") if name.strip()]
    if phase and phase.slug not in [other.slug for other in chosen]:
        chosen.append(phase)
    return chosen


def show_notices(out: Screen, phase: Phase) -> None:
    begun = unfinished.found(phase.root)
    if begun:
        out.line(f"note: {begun}; `make undo` takes it back", "yellow")
    for notice in [*diagnose.warned(phase), *diagnose.notices(phase)]:
        out.line(f"note: {notice}", "yellow")


def remember(
    phase: Phase,
    result: public.PhaseResult,
    mutant: mistakes.Mutant | None = None,
    wrong: Sequence[Exercise] = (),
) -> None:
    """Store what `progress`, `hint` and `diff` ask for. Tasks that were not judged, as where one
    was judged alone, stay as they were."""
    state = State(phase.root)
    earlier: dict[str, Any] = state.get("phases", phase.slug) or {}
    judged = [task for task in phase.exercises if not _not_judged(result, task)]
    names = {task.id for task in judged}
    had = state.standing(phase) if result.alone else state.passed(phase.slug)
    passed = [
        task.id
        for task in phase.exercises
        if (result.task_passed(task) if task.id in names else task.id in had)
    ]
    root = root_of(result, wrong)
    counts = {task.id: _count(result, task) for task in judged}
    about: dict[str, dict[str, Any]] = {
        "judged": {task.id: fingerprint(phase, task) for task in judged},
        "failing": failing_functions(result, mutant),
        "failed": {task.id: hints.failure(result.of_task(task), task.test_hints) for task in wrong},
        "counts": counts,
    }
    kept = {
        name: {task: row for task, row in earlier.get(name, {}).items() if task not in names}
        for name in about
    }
    record: dict[str, Any] = {name: kept[name] | rows for name, rows in about.items()} | {
        "passed": passed,
        "begin": {task.id: root.id for task in phase.exercises} if root else {},
        "public": list(result.public),
        "notebook": list(result.answers),
        "green": result.green,
        "when": datetime.now().isoformat(timespec="seconds"),
    }
    if result.alone:
        unknown = ["-", "-"] if phase.notebook else [0, 0]
        done, total = record["notebook"] = earlier.get("notebook", unknown)
        known = record["counts"].values() if len(record["counts"]) == len(phase.exercises) else ()
        record["public"] = [sum(each) for each in zip(*known, strict=True)] or ["-", "-"]
        record["green"] = len(passed) == len(phase.exercises) and done == total != "-"
    state.put("phases", phase.slug, record)


def _count(result: public.PhaseResult, task: Exercise) -> list[int]:
    """Tests of a task: passed, and all of them."""
    tests = result.of_task(task)
    return [sum(test.passed for test in tests), len(tests)]


def wrong_tasks(
    result: public.PhaseResult, holes: Mapping[str, Sequence[source.Function]]
) -> list[Exercise]:
    """The tasks that fail; where nothing is written, what fails is another task's."""
    failed = {test.task for test in result.tests if test.outcome in ("failed", "hang")}
    return [
        task
        for task in result.phase.exercises
        if task.id in failed and len(holes.get(task.id, ())) < len(task.functions)
    ]


def failing_functions(
    result: public.PhaseResult, mutant: mistakes.Mutant | None = None
) -> dict[str, str]:
    """Task -> the function of it that `next: edit` names first, for each task that fails."""
    found: dict[str, str] = {}
    for task in result.phase.exercises:
        names, _ = suspects(result.phase, task, result.of_task(task), mutant)
        if names and names[0] in task.functions:
            found[task.id] = names[0]
    return found


def _not_judged(result: public.PhaseResult, task: Exercise) -> bool:
    """Whether another task was judged alone, or an endless loop elsewhere kept this one from being
    judged: it keeps its points."""
    outcomes = {test.outcome for test in result.of_task(task)}
    return not outcomes or ("not run" in outcomes and outcomes <= {"not run", "passed"})


def next_step(
    result: public.PhaseResult,
    holes: dict[str, list[source.Function]],
    mutant: mistakes.Mutant | None = None,
) -> str:
    """What to type or edit now."""
    phase = result.phase
    hint = command(phase, "hint", result.alone)
    keys = f"   [{hint} | {command(phase, 'diff')} | {command(phase, 'reset')}]"
    failed = root_of(result, wrong_tasks(result, holes))
    task = failed or next((task for task in phase.exercises if task.id in holes), None)
    if task:
        blank = [] if failed and len(task.functions) > 1 else holes.get(task.id, [])
        where = place_to_edit(phase, task, result.of_task(task), blank, mutant)
        return f"edit {where}, then {command(phase, 'lab')}{keys}"
    judged = {test.task for test in result.tests}
    waited_for = {test.waits_for for test in result.tests if test.outcome == "todo"}
    for exercise in phase.exercises:
        if exercise.id in waited_for - judged:
            also = f"write {exercise.id} as well, which this task calls"
            unwritten = [hole.name for hole in open_holes(phase).get(exercise.id, ())]
            where = where_to_edit(phase, exercise, *unwritten[:1])
            return f"{also}: {where}, then {command(phase, 'lab')}{keys}"
    if len(judged) < len(phase.exercises):
        return f"{command(phase, 'lab')} judges the whole phase"
    for exercise in phase.exercises:
        left = left_todo(phase, exercise) if exercise.id in waited_for else ""
        if left:
            return f"delete the TODO in {left}, then {command(phase, 'lab')}"
    if not all(test.passed for test in result.tests):
        return f"{command(phase, 'lab')} again; some tests did not run"
    done, total = result.answers
    if any(record["task"] == "notebook" for record in result.notebook or []):
        return f"restore the notebook, then {command(phase, 'lab')}"  # its own line says how
    if done < total:
        return f"{command(phase, 'notebook')} and answer the rest, then {command(phase, 'lab')}"
    return (
        f"{command(phase, 'run')} puts your module into the engine;"
        f" {command(phase, 'diff')} compares; {command(phase, 'grade')} runs the hidden suite"
    )


def current_task(phase: Phase, task: str) -> Exercise:
    """The named task, or the first that was not green in the last run, or has changed since; in
    place of one that fails by another's fault, that other."""
    if task:
        return phase.exercise(task)
    passed = State(phase.root).standing(phase)
    left = {e.id: e for e in phase.exercises if e.id not in passed}
    first = next(iter(left.values()), phase.exercises[-1])
    begin = (State(phase.root).get("phases", phase.slug) or {}).get("begin", {})
    return left.get(begin.get(first.id), first)


def show_hint(
    out: Screen, phase: Phase, exercise: Exercise, function: str, named: bool = False
) -> None:
    """The next hint of a task, below those that were shown before.

    Args:
        function: the one of the task that it is to be about.
        named: the task was asked for by its number.
    """
    state, left = State(phase.root), list[str]()
    shown = int(state.get("hints", exercise.id, 0))
    out.line(f"{exercise.id} {exercise.title}", "bold")
    if not show_test_hint(out, state, phase, exercise):
        shown = min(shown + 1, len(HINT_LEVELS))
    for level in range(shown):
        style = "" if level == shown - 1 else "dim"
        text, left = hints.about(exercise.hints[level], exercise.functions, function)
        out.line(f"{level + 1} of 4, {HINT_LEVELS[level]}: {text}", style)
    if left:
        out.line(f"about {function}; of {some(left)}: `python -m labkit hint {phase.number}"
                 f" {exercise.number} --function {left[0].rpartition('.')[2]}`", "dim")  # fmt: skip
    out.line()
    again = f"{command(phase, 'hint', exercise if named else None)} shows the next one"
    if shown == len(HINT_LEVELS):
        again = f"that was the last; {command(phase, 'diff')} compares with the solution"
    out.line(f"edit {where_to_edit(phase, exercise, function)}; {again}", "dim")
    state.put("hints", exercise.id, shown)


def show_test_hint(out: Screen, state: State, phase: Phase, exercise: Exercise) -> bool:
    """The test that failed in the last run, with its smallest input, and its own hint if it has
    one. Whether that hint is shown for the first time."""
    failed = (state.get("phases", phase.slug) or {}).get("failed", {}).get(exercise.id)
    if not failed:
        return False
    out.line(f"✗ {failed['title']}", "red")
    for line in failed["lines"]:
        out.line(line, "dim", 4)
    text = exercise.test_hints.get(failed["test"])
    seen = (state.get("test_hints", exercise.id) or {}).get("seen", [])
    is_new = bool(text) and failed["test"] not in seen
    if text:
        out.line(f"of this test: {text}", "" if is_new else "dim")
    if is_new:
        state.put("test_hints", exercise.id, {"seen": [*seen, failed["test"]]})
    return is_new


def function_at(phase: Phase, exercise: Exercise, name: str = "") -> str:
    """The function of a task that the learner is at: the named one; else the one that failed last,
    the first that is open, the first.

    Raises:
        ManifestError: the task has no function of that name.
    """
    for known in exercise.functions:
        if name and name in (known, known.rpartition(".")[2]):
            return known
    if name:
        names = ", ".join(exercise.functions)
        raise ManifestError(f"task {exercise.id} has no function {name!r}; it has {names}")
    failing = (State(phase.root).get("phases", phase.slug) or {}).get("failing", {})
    if failing.get(exercise.id) in exercise.functions:
        return str(failing[exercise.id])
    try:
        still = open_holes(phase).get(exercise.id, [])
    except (OSError, SyntaxError):
        still = []
    return still[0].name if still else exercise.functions[0]


def reset_task(phase: Phase, exercise: Exercise) -> dict[Path, str]:
    """The lab file with the functions of one task as in the skeleton, all else as it is."""
    path = phase.lab_file(exercise.module)
    shown, blank = phase.lab_path(exercise.module), skeleton(phase, exercise.module)
    try:
        text = read_as_utf8(path)
        for name in exercise.functions:
            text = source.put_back(text, name, blank, shown)
    except (OSError, SyntaxError, source.SourceError) as error:
        why = (error.strerror or error) if isinstance(error, OSError) else error
        raise source.SourceError(
            f"{shown} cannot be reset task by task ({why});"
            f" reset all of it: {command(phase, 'reset')}"
        ) from None
    return {path: text}
