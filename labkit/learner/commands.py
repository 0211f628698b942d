"""The learner's loop: lab, watch, hint, diff, reset, notebook, update.

Each public function is one command of `labkit.cli`; the words in its signature are its options.
"""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import typer

from labkit.course import source, sync, unfinished
from labkit.course import update as updating
from labkit.course.arguments import PHASE, TASK
from labkit.course.console import (
    TOLD,
    Screen,
    command,
    course,
    polite,
    ready_phase,
    some,
    task_in,
    told,
)
from labkit.course.files import HALF, backup, holds, read_python, write_all
from labkit.course.manifest import Exercise, ManifestError, Phase
from labkit.course.state import State
from labkit.judge import diagnose, notebook_judge
from labkit.learner import screen
from labkit.learner.rounds import (
    current_task,
    function_at,
    judge_and_show,
    phases_in,
    reset_task,
    show_hint,
)
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
    profile: str = typer.Option("", help="instead: the rules of another vLLM; current"),
) -> None:
    """Judge your answers of one phase: public tests and notebook. Exit code 0 only if all pass.

    A task that has passed runs again when you change something that its tests reach."""
    if not phase:
        raise ValueError("say which phase: make lab-03; `make progress` lists them")
    phase, task = task_in(phase, task)
    if profile:
        from labkit.learner import releases

        raise typer.Exit(0 if releases.judge_and_show(ready_phase(phase), profile) else 1)
    raise typer.Exit(0 if judge_and_show(ready_phase(phase), labs, task, every) else 1)


def require_python(phases: list[Phase]) -> None:
    """Before the learner's modules run inside the engine: a file that is no Python, or lacks a
    function, is shown as `lab` shows it, and ends the command."""
    mine = phases if overlay.mapping_for(phases) else []
    for phase in mine:
        problem = diagnose.before(phase, notebook=False)
        if problem:
            screen.show_problem(Screen(), problem, tiers=False)
            raise typer.Exit(1)


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
    exercise = current_task(chosen, task)
    show_hint(Screen(), chosen, exercise, function_at(chosen, exercise, function), bool(task))


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
    other = {path: data for path, data in kept.items() if not holds(path, data)}
    return other if set(other) - {root / sync.RECORD} else {}


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
def profile(
    phase: str = typer.Argument("", help="your modules of a phase in the engine; none: ours"),
    out: str = typer.Option("profile.html", help="the page to write"),
    tokens: int = typer.Option(100, min=1, help="of each of four answers"),
    save: str = typer.Option("", help="a folder that the figures are written to, as files"),
) -> None:
    """Where a run's time goes: a page with the flame graphs of host and device."""
    from labkit.learner import ab

    phases = phases_in(phase) if phase else []
    require_python(phases)
    title = f"Where the time goes{f', with your phase {phase}' if phase else ''}"
    words = ["-m", "labkit.learner.flames", out, "--title", title, "--tokens", str(tokens)]
    words += ["--save", save] if save else []
    raise typer.Exit(ab.run_command(course(), phases, words))


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
