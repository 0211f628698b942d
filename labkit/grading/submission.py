"""One submission: find the files that a phase asks for in whatever folder a student handed in, and
grade them.

    python -m labkit grade-submission 03 handed-in/ada --result ada.json

A submission is data. Nothing of it is imported or parsed here; the grader runs it in a sandbox.
Files that the phase does not ask for are never looked at.
"""

from __future__ import annotations

import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

import typer

from labkit.course.arguments import PHASE
from labkit.course.console import polite, ready_phase, some
from labkit.course.files import one_line
from labkit.course.manifest import Phase
from labkit.grading import grade
from labkit.grading.grade import ISOLATE
from labkit.grading.result import (
    GradeResult,
    Seed,
    commitment,
    fresh_seed,
    hash_submission,
    hash_suite,
    now,
    tool_versions,
)
from labkit.grading.taken import Problem
from labkit.sandbox import isolation

SKIPPED = {".git", ".venv", "node_modules", "__pycache__", "__MACOSX", "mini_vllm", "solutions"}
"""Folders that are never searched: a whole checkout holds the reference under the same name."""


MAX_DEPTH = 8
"""Levels of folders that are searched: an archive packed in haste has three or four."""
MAX_ENTRIES = 100_000
"""Files and folders that are looked at: a whole checkout has a few thousand."""


def find_files(phase: Phase, folder: Path) -> dict[str, Path]:
    """Module -> the submitted file, where it was found or where it should be.

    It may lie in `labs/NN-slug/`, in `NN-slug/`, at the top, or anywhere else if it is there once.
    """
    files = {m: _usual(phase, folder, phase.lab_file(m).name) for m in phase.modules}
    lacking = {path.name for path in files.values() if not os.path.lexists(path)}
    elsewhere = defaultdict[str, list[str]](list)
    for entry in _below(folder) if lacking else ():
        if entry.name in lacking:
            elsewhere[entry.name].append(entry.path)
    once = {name: Path(paths[0]) for name, paths in elsewhere.items() if len(paths) == 1}
    return {module: once.get(path.name, path) for module, path in files.items()}


def _usual(phase: Phase, folder: Path, name: str) -> Path:
    """Where a file lies, of the usual places; the last of them if it is in none."""
    *usual, top = folder / "labs" / phase.slug / name, folder / phase.slug / name, folder / name
    return next((path for path in usual if path.is_symlink() or path.is_file()), top)


def _below(folder: Path) -> Iterator[os.DirEntry[str]]:
    """What lies in a folder, at most `MAX_DEPTH` levels down and `MAX_ENTRIES` in all. No link is
    followed, and a folder that cannot be opened is passed over: a hand-in must not end the search
    through a class."""
    return islice(_all_below(folder), MAX_ENTRIES)


def _all_below(folder: Path) -> Iterator[os.DirEntry[str]]:
    waiting = [(os.fspath(folder), 0)]
    while waiting:
        here, depth = waiting.pop()
        try:
            with os.scandir(here) as entries:
                for entry in entries:
                    yield entry
                    inner = entry.is_dir(follow_symlinks=False) and entry.name not in SKIPPED
                    if inner and depth < MAX_DEPTH:
                        waiting.append((entry.path, depth + 1))
        except OSError:
            continue


def check_files(folder: Path, files: Mapping[str, Path]) -> dict[str, Problem]:
    """Module -> why its file is not this student's own, for each of which that is so.

    Whether they are there, plain files and Python is the grader's to say (`grade.judge`).
    """
    found: dict[str, Problem] = {}
    lacking = [module for module, path in files.items() if not os.path.lexists(path)]
    below = list(_below(folder)) if lacking else []
    for module, path in files.items():
        problem = _missing(folder, path.name, below) if module in lacking else _link(folder, path)
        if problem:
            found[module] = problem
    return found


def _link(folder: Path, path: Path) -> Problem | None:
    """What is wrong with a file that lies elsewhere."""
    try:
        # Strictly: since Python 3.13 a link to itself is resolved without a word otherwise.
        own = path.resolve(strict=True).is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # a link to itself, or to nothing
        own = False
    text = f"{path.name} is a link; hand in the file itself"
    return None if own else Problem("missing file", text)


ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".xz", ".bz2", ".7z", ".rar")


def _missing(folder: Path, name: str, below: list[os.DirEntry[str]]) -> Problem | None:
    """Why a file was not found, if there is more to say than that it is not there: several of the
    name, what a system or a browser makes of it, an archive that may hold it, or too much else."""
    meant = _core(name)
    alike = [
        one_line(os.path.relpath(entry.path, folder))[:80]
        for entry in below
        if _core(entry.name) == meant or os.path.splitext(entry.name)[1].lower() in ARCHIVES
    ]
    if alike:
        text = f"{name} is missing: hand in one file of this name, not {some(sorted(alike))}"
        return Problem("missing file", text)
    if len(below) == MAX_ENTRIES:
        text = f"{name} is missing among the first {MAX_ENTRIES} files; hand in yours alone"
        return Problem("missing file", text)
    return None


def _core(name: str) -> str:
    """What is left of "Scheduler (1).py", "scheduler - Copy.py", "scheduler.py.txt" or
    "scheduler.ipynb": its letters, without what a second download, a copy or an editor adds."""
    letters = re.sub(r"[\W\d_]+", "", name.lower()).removesuffix("txt")
    letters = re.sub("(ipynb|pyc)$", "py", letters)
    return letters.replace("copyof", "").replace("copy", "")


def refuse(phase: Phase, files: Mapping[str, Path], seed: int, problem: Problem) -> GradeResult:
    """The result of a submission that cannot run: every task failed, and why."""
    return GradeResult(
        phase=phase.slug,
        title=phase.title,
        submission=hash_submission({path.name: path for path in files.values()}),
        suite=hash_suite(phase.hidden_tests),
        seed=Seed(commitment(seed), seed),
        isolation="none",
        tools=tool_versions(),
        groups=[grade.refusal(task, problem) for task in phase.exercises],
        problem=problem.text,
        started=now(),
    )


def grade_folder(
    phase: Phase, folder: Path, seed: int, isolate: str = isolation.AUTO
) -> GradeResult:
    """Grade what a student handed in.

    Raises:
        ValueError: the hidden suite is not in this checkout, so nothing can be judged; or
            `isolate` is no rung, or does not work here.
    """
    grade.need_suite(phase)
    files = find_files(phase, folder)
    return grade.grade_files(phase, files, seed, isolate, check_files(folder, files))


@polite
def main(
    phase: str = PHASE,
    folder: Path = typer.Argument(help="what the student handed in", file_okay=False),
    result: Path = typer.Option(help="write the result file here"),
    seed: int = typer.Option(None, help="of the random inputs; default: a fresh one"),
    isolate: str = ISOLATE,
) -> None:
    """Grade one folder and write its result file; exit code 0 if it could be judged."""
    chosen = ready_phase(phase)
    if not folder.is_dir():
        print(f"{folder} is no folder; give the one that the student handed in", file=sys.stderr)
        raise typer.Exit(2)
    number = fresh_seed() if seed is None else seed
    found = grade_folder(chosen, folder, number, isolate)
    found.write(result)
    said = f" ({found.problem})" if found.problem else ""
    print(f"{folder.resolve().name}: {found.earned:g} of {found.points:g} points{said}")
    raise typer.Exit(1 if found.status == "error" else 0)
