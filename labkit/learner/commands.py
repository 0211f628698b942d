"""The learner's loop: lab, watch, hint, diff, reset, notebook, update.

Each public function is one command of `labkit.cli`; the words in its signature are its options.
"""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import typer

from labkit.course import source, sync, unfinished
from labkit.course import update as updating
from labkit.course.console import (
    PHASE,
    TASK,
    TOLD,
    Screen,
    command,
    course,
    polite,
    ready_phase,
    some,
    task_in,
    told,
    where_to_edit,
)
from labkit.course.files import HALF, backup, read_as_utf8, read_python, write_all
from labkit.course.manifest import HINT_LEVELS, Exercise, ManifestError, Phase
from labkit.course.skeleton import left_todo, open_holes, skeleton
from labkit.course.state import State, fingerprint
from labkit.judge import diagnose, mistakes, notebook_judge, public
from labkit.judge.kept import Verdicts
from labkit.judge.suspects import place_to_edit, root_of, suspects
from labkit.learner import hints, screen
from labkit.process import overlay
from labkit.setup import bootstrap
from labkit.setup.requirements import DEFAULT_GROUPS

LOOK_MS = 300
"""How often `watch` looks whether the folder is still the one that it watches."""


@polite
def lab(
    phase: str = typer.Argument("", help="a phase: 3, 03 or 03-scheduler"),
    labs: str = typer.Option("", help="use your modules of these phases too: 02,03"),
    task: str = typer.Option("", help="judge this task alone: 2 or 03.2"),
    every: bool = typer.Option(False, "--all", help="run every task, explain each that fails"),
) -> None:
    """Judge your answers of one phase: public tests and notebook. Exit code 0 only if all pass.

    A task that has passed runs again when you change something that its tests reach."""
    if not phase:
        raise ValueError("say which phase: make lab-03; `make progress` lists them")
    phase, task = task_in(phase, task)
    raise typer.Exit(0 if judge_and_show(ready_phase(phase), labs, task, every) else 1)


def phases_in(labs: str, phase: Phase | None = None) -> list[Phase]:
    """The phases named in "02,03", and `phase`."""
    known = course()
    chosen = [known.phase(name.strip()) for name in labs.split(",") if name.strip()]
    if phase and phase.slug not in [other.slug for other in chosen]:
        chosen.append(phase)
    return chosen


def judge_and_show(phase: Phase, labs: str = "", task: str = "", every: bool = False) -> bool:
    """One round of the loop on the screen; True if everything is green."""
    out = Screen()
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
    verdicts = Verdicts(phase, mapping) if mapping else None
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
    if verdicts:  # last: a disk that is full must not hide what was found out
        remember(phase, result, match, wrong_tasks(result, holes))
        public.keep(verdicts, result)
    return result.green and not holes


def require_python(phases: list[Phase]) -> None:
    """Before the learner's modules run inside the engine: a file that is no Python, or lacks a
    function, is shown as `lab` shows it, and ends the command."""
    mine = phases if overlay.mapping_for(phases) else []
    for phase in mine:
        problem = diagnose.before(phase, notebook=False)
        if problem:
            screen.show_problem(Screen(), problem, tiers=False)
            raise typer.Exit(1)


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
        done, total = record["notebook"] = earlier.get("notebook", [0, bool(phase.notebook)])
        known = record["counts"].values() if len(record["counts"]) == len(phase.exercises) else ()
        record["public"] = [sum(each) for each in zip(*known, strict=True)] or ["-", "-"]
        record["green"] = len(passed) == len(phase.exercises) and done == total
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
            return f"{also}: {where_to_edit(phase, exercise)}, then {command(phase, 'lab')}{keys}"
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


@polite
def watch(phase: str = PHASE) -> None:
    """Judge again each time a file of the phase's lab is saved; Ctrl-C ends it."""
    chosen = ready_phase(phase)
    for number, _ in enumerate(saves(chosen.labs)):
        if number:
            Screen().console.clear()
        try:
            judge_and_show(chosen)
        except TOLD as error:  # as of a file that is just being written
            print(told(error), file=sys.stderr)
        print(f"\nwatching labs/{chosen.slug} (Ctrl-C ends)", flush=True)


def saves(folder: Path) -> Iterator[None]:
    """Once at the beginning, then after each change in a folder, also one that came while the last
    was judged. A folder that is gone is waited for: `reset` brings it back."""
    from watchfiles import watch as changes

    known: int | None = -1
    while True:
        begun = _inode(folder)
        if begun is None:
            if begun != known:
                yield
            time.sleep(LOOK_MS / 1000)
        else:
            fresh = True
            looks = changes(folder, debounce=300, rust_timeout=LOOK_MS, yield_on_timeout=True)
            for seen in looks:
                if seen or fresh:
                    yield
                fresh = False
                if _inode(folder) != begun:
                    break
        known = begun


def _inode(folder: Path) -> int | None:
    return folder.stat().st_ino if folder.is_dir() else None


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


@polite
def hint(
    phase: str = PHASE,
    task: str = TASK,
    function: str = typer.Option("", help="of a task with several functions: this one"),
) -> None:
    """Show the next hint of a task: of the test that failed, then concept, invariant, where, nearly
    the code."""
    phase, task = task_in(phase, task)
    chosen = ready_phase(phase)
    exercise, state, out = current_task(chosen, task), State(chosen.root), Screen()
    shown = int(state.get("hints", exercise.id, 0))
    at, left = function_at(chosen, exercise, function), list[str]()
    out.line(f"{exercise.id} {exercise.title}", "bold")
    if not show_test_hint(out, state, chosen, exercise):
        shown = min(shown + 1, len(HINT_LEVELS))
    for level in range(shown):
        style = "" if level == shown - 1 else "dim"
        text, left = hints.about(exercise.hints[level], exercise.functions, at)
        out.line(f"{level + 1} of 4, {HINT_LEVELS[level]}: {text}", style)
    if left:
        out.line(f"about {at}; of {some(left)}: `python -m labkit hint {chosen.number}"
                 f" {exercise.number} --function {left[0].rpartition('.')[2]}`", "dim")  # fmt: skip
    out.line()
    again = f"{command(chosen, 'hint', exercise if task else None)} shows the next one"
    if shown == len(HINT_LEVELS):
        again = f"that was the last; {command(chosen, 'diff')} compares with the solution"
    out.line(f"edit {where_to_edit(chosen, exercise, at)}; {again}", "dim")
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


@polite
def diff(
    phase: str = PHASE,
    task: str = TASK,
    yes: bool = typer.Option(False, "--yes", help="do not ask, even if it is not green yet"),
) -> None:
    """Compare your functions with the solution's, one by one; asks first for what is not green."""
    phase, task = task_in(phase, task)
    chosen, out = ready_phase(phase), Screen()
    verdicts = State(chosen.root).verdicts(chosen)
    for exercise in [chosen.exercise(task)] if task else chosen.exercises:
        out.line(f"{exercise.id} {exercise.title}", "bold")
        if verdicts.get(exercise.id) != "passed" and not yes:
            seen = "is not green yet" if exercise.id in verdicts else "was not judged as it stands"
            question = f"{exercise.id} {seen}. Show its solution?"
            if not sys.stdin.isatty() or not typer.confirm(question):
                this = f"{command(chosen, 'diff')} TASK={exercise.number}"
                shows = f'{this} ARGS="--yes" shows it'
                out.line(f"not shown; {shows}, {command(chosen, 'hint')} helps", "dim", 2)
                continue
        for name in exercise.functions:
            show_diff(out, chosen, exercise, name)


def show_diff(out: Screen, phase: Phase, exercise: Exercise, name: str) -> None:
    texts: list[list[str]] = []
    for path in (phase.lab_file(exercise.module), phase.reference_file(exercise.module)):
        text = read_python(path) if path.exists() else ""
        function = source.functions(text, shown(phase.root, path)).get(name)
        texts.append(source.function_text(text, function).splitlines() if function else [])
    theirs = phase.reference_file(exercise.module).relative_to(phase.root).as_posix()
    mine = phase.lab_path(exercise.module)
    before, after = texts
    lines = list(
        difflib.unified_diff(before, after, f"{mine} {name}", f"{theirs} {name}", n=99, lineterm="")
    )
    if not lines:
        out.line(f"{name}: the same, line for line", "green", 2)
    for line in lines:
        style = {"+": "green", "-": "red", "@": "dim"}.get(line[0], "")
        if not line.startswith("@@"):
            out.line(line, style, 2)


@polite
def reset(
    phase: str = PHASE,
    task: str = typer.Option("", help="only the functions of this task"),
    notebook_only: bool = typer.Option(False, "--notebook", help="only lab.ipynb"),
) -> None:
    """Restore the skeleton of a phase or of one task; your files are copied to .labkit/backups/."""
    phase, task = task_in(phase, task)
    chosen = ready_phase(phase)
    take_back(chosen.root)
    if task:
        fresh = reset_task(chosen, chosen.exercise(task))
    else:
        fresh = sync.generated(chosen)
        if notebook_only:
            fresh = {path: text for path, text in fresh.items() if path.suffix == ".ipynb"}
        elif not chosen.labs.exists():
            fresh |= sync.makefile(chosen)
    kept = backup(chosen.root, list(fresh))
    if kept:
        print(f"your version is in {shown(chosen.root, kept)}; `make undo` brings it back")
    with unfinished.under_way(unfinished.Unfinished(chosen.root, "reset", kept)):
        write_all(fresh)
    for path in fresh:
        print(f"restored {shown(chosen.root, path)}")


def shown(root: Path, path: Path) -> str:
    """A path as the learner types it."""
    return path.relative_to(root).as_posix()


@polite
def undo(phase: str = typer.Argument("", help="of this phase's files only: 3 or 03")) -> None:
    """Bring back the files of the last backup, which `reset`, `update` or `undo` has made."""
    root, within = course().root, f"labs/{course().phase(phase).slug}" if phase else ""
    if take_back(root):
        return
    folders = sorted(path for path in (root / ".labkit" / "backups").glob("*") if path.is_dir())
    folders = [folder for folder in folders if not folder.name.endswith(HALF)]
    if not folders:
        print("there is no backup in .labkit/backups: nothing was reset or updated here")
        raise typer.Exit(1)
    kept = ((folder, differing(root, folder, within)) for folder in reversed(folders))
    last, back = next((pair for pair in kept if pair[1]), (folders[-1], {}))
    if not back:
        print("every backup in .labkit/backups holds what stands there now: nothing to undo")
        raise typer.Exit(1)
    now = backup(root, list(back))
    with unfinished.under_way(unfinished.Unfinished(root, "undo", now)):
        write_all(back)
    for path in back:
        if path != root / sync.RECORD:  # what an update has merged; of no interest to a reader
            print(f"brought back {shown(root, path)}, from {shown(root, last)}")
    if now:
        print(f"what stood there is in {shown(root, now)}; `make undo` again brings that back")
    for other in () if phase else others(root, folders[: folders.index(last)], back):
        print(f'an older backup holds files of {other}: `make undo ARGS="{other[5:7]}"`')


def others(root: Path, folders: list[Path], back: dict[Path, bytes]) -> list[str]:
    """The labs, "labs/03-scheduler", of which older backups hold what does not stand there now,
    without those that have just come back."""
    held = {path.parent for folder in folders for path in differing(root, folder)}
    labs = {shown(root, folder) for folder in held - {path.parent for path in back}}
    return sorted(name for name in labs if name.startswith("labs/"))


def take_back(root: Path) -> bool:
    """Whether a command was stopped in its middle: then every file is as it was before it."""
    begun = unfinished.found(root)
    for line in begun.take_back() if begun else ():
        print(line)
    return begun is not None


def differing(root: Path, folder: Path, within: str = "") -> dict[Path, bytes]:
    """What of a backup is other than what stands in its place: nothing, after a command that was
    refused, or had nothing to do.

    Args:
        within: of this folder of the course alone.
    """
    files = sorted(path for path in (folder / within).rglob("*") if path.is_file())
    kept = {root / path.relative_to(folder): path.read_bytes() for path in files}
    other = {path: data for path, data in kept.items() if not _holds(path, data)}
    return other if set(other) - {root / sync.RECORD} else {}


def _holds(path: Path, data: bytes) -> bool:
    try:
        return path.read_bytes() == data
    except OSError:
        return False


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


@polite
def notebook(phase: str = PHASE) -> None:
    """Open the phase's notebook in JupyterLab."""
    chosen = ready_phase(phase)
    path = chosen.labs / "lab.ipynb"
    if not path.exists():
        raise ManifestError(
            f"{path.relative_to(chosen.root)} is missing;"
            f" `python -m labkit reset {chosen.number} --notebook` brings a new one"
        )
    notebook_judge.answers(chosen)  # one that no Jupyter opens is named before it is installed
    bootstrap.enter((*DEFAULT_GROUPS, "notebook"), ["notebook", phase])
    words = [sys.executable, "-m", "jupyterlab", str(path)]
    if hasattr(os, "geteuid") and os.geteuid() == 0:  # as in most containers
        words.append("--allow-root")
    raise typer.Exit(subprocess.call(words))


@polite
def update(pull: bool = typer.Option(True, help="run `git pull` first")) -> None:
    """Fetch a newer course and merge its new skeletons into your files; backups are kept."""
    take_back(course().root)
    changes = updating.update(course(), pull)
    for change in changes:
        print(change if change.kind != "wrong" else f"✗ {change.why}")
    kept = [change.path for change in changes if change.kind == "backup"]
    kinds = {change.kind for change in changes}
    if kinds & {"merged", "conflict"}:
        print(f"Your files as they were: {kept[0]}; `make undo` brings them back.")
    elif not kinds & {"wrong", "written"}:
        print("Your files are as they were.")
    marked = sorted({change.path[5:7] for change in changes if change.kind == "conflict"})
    if marked:  # "labs/03-scheduler/scheduler.py" -> "03"
        lab_of = some([f"make lab-{number}" for number in marked])
        print(f"next: {lab_of} shows the first marked place, and what to do with it")
    raise typer.Exit(1 if kinds & {"wrong", "conflict"} else 0)


@polite
def run(
    words: list[str] = typer.Argument(None, help="a phase, or after `--` a python command"),
    labs: str = typer.Option("", help="your modules of these phases: 02,03"),
) -> None:
    """Your module inside the whole engine: `run 03`, or `run --labs 02,03 -- -m mini_vllm …`."""
    from labkit.learner import ab

    if labs and words:
        require_python(phases_in(labs))
        raise typer.Exit(ab.run_command(course(), phases_in(labs), words))
    if not words or len(words) > 1:
        raise ManifestError("say which phase: run 03; or give a command: run --labs 02,03 -- -m …")
    chosen = ready_phase(words[0])
    require_python([chosen])
    raise typer.Exit(ab.compare(chosen))


@polite
def trace_diff(
    phase: str = PHASE,
    traces: list[str] = typer.Argument(None, help="trace files; default: the phase's own"),
) -> None:
    """Replay traces on your modules and the reference, and stop at the first difference."""
    from labkit.learner import divergence

    chosen = ready_phase(phase)
    require_python([chosen])
    raise typer.Exit(divergence.show(chosen, traces or []))
