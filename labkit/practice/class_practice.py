"""`grade-practice`: the hunts and the change requests in one student's folder.

A folder holds what the learner's checkout holds: `hunts/03.2/scheduler.py`, `changes/03.1/…`. What
counts are the hidden tests. `grade-class 03 submissions/ --practice` calls this for each student.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import typer

from labkit.course.arguments import PHASE
from labkit.course.console import polite, ready_phase
from labkit.course.files import write_text
from labkit.course.manifest import Phase
from labkit.judge import public
from labkit.judge.hidden_suite import run_hidden
from labkit.practice import changes, hunts
from labkit.sandbox import build as sandbox
from labkit.sandbox import isolation

ABSENT = "not handed in"
LOCKED = f"not run: its tests run beside it; --isolation {isolation.Plain.name} allows that"
Judge = Callable[[Path], public.PhaseResult]


@polite
def main(
    phase: str = PHASE,
    folder: Path = typer.Argument(help="one student's: hunts/ and changes/ lie in it"),
    isolate: str = typer.Option(isolation.AUTO, "--isolation", help="as for grade-class"),
    seed: int = typer.Option(1, help="of the random inputs"),
    out: Path = typer.Option(None, "--result", help="write the result there as JSON, too"),
) -> None:
    """Judge the hunts and change requests of one student by the hidden tests."""
    found = grade(ready_phase(phase), folder, isolate, seed)
    for name, word in found.items():
        print(f"{name}: {word}")
    if out:
        write_text(out, json.dumps(found, indent=1) + "\n")


def grade(phase: Phase, folder: Path, isolate: str, seed: int) -> dict[str, str]:
    """ "hunt 03.1" -> "solved", "17 of 20 tests", or why there is no verdict.

    Hunts are judged as a grade is, in the strongest isolation that works. The tests of a change
    request import the module that they judge, so nothing can be put between them.
    """
    rung = sandbox.choose_rung(phase, isolate)[0].name
    found = {}
    for hunt in hunts.load(phase):
        file = folder / "hunts" / hunt.id / hunt.file.name
        found[f"hunt {hunt.id}"] = verdict(folder, file, partial(judge_hunt, hunt, seed, rung))
    for change in changes.load(phase):
        file = folder / "changes" / change.id / change.file.name
        locked = rung != isolation.Plain.name and file.is_file()
        words = LOCKED if locked else verdict(folder, file, partial(judge_change, change))
        found[f"change {change.id}"] = words
    return found


def judge_hunt(hunt: hunts.Hunt, seed: int, rung: str, file: Path) -> public.PhaseResult:
    """The hidden tests of the module's tasks."""
    module = hunt.mistake.module
    tasks = [task.id for task in hunt.phase.of_module(module)]
    return run_hidden(hunt.phase, {module: str(file)}, seed, tasks, rung=rung)


def judge_change(change: changes.Change, file: Path) -> public.PhaseResult:
    """The change's public and hidden tests."""
    tests = [change.public_tests, change.hidden_tests]
    return public.run_tests(change.phase, tests, {change.module: str(file)})


def verdict(folder: Path, file: Path, judge: Judge) -> str:
    """One working copy of the student's folder in a few words."""
    if not os.path.lexists(file):
        return ABSENT
    try:
        if not file.resolve().is_relative_to(folder.resolve()):
            return f"{file.name} is a link; hand in the file itself"
        sandbox.declared({"": file})
    except sandbox.SubmissionError as error:
        return str(error)
    except (OSError, RuntimeError):  # a link to itself
        return f"{file.name} is a link or no file; hand in the file itself"
    result = judge(file.resolve())
    done, total = result.public
    if result.broken or not total:
        lines = result.broken.strip().splitlines() or ["no test ran"]
        return f"cannot be imported: {lines[-1][:120]}"
    return "solved" if done == total else f"{done} of {total} tests"
