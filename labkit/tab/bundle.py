"""The files that run in the tab, as one zip: `course.zip`.

No hidden test, no solution and no readable reference is among them; `tests/labkit/tab` looks. What
each phase needs is found from the imports of its tasks and tests.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from labkit.course import here as in_the_tab
from labkit.course import sealed
from labkit.course.manifest import Course, Phase
from labkit.course.skeleton import skeleton
from labkit.judge.mistakes import faults_file, mutants_file, vectors_file
from labkit.judge.public import files_of
from labkit.practice import counted
from labkit.tab import stepping
from labkit.tab.imports import Imports

ROOTS = (
    "labkit/tab/driver.py",
    "labkit/inside/answers.py",
    "labkit/trace/scenario.py",
    "labkit/arena/contest.py",
    "labkit/judge/pytest_report.py",
    "tests/public/conftest.py",
)
"""Beside the tasks and their tests, what runs in the tab."""
QUESTIONS = "labkit/practice/questions/p*.py"
"""Those of every phase: each module is imported by its name."""
DATA = (
    "tests/conformance/golden/*.xz",
    "benchmarks/results/arena/*.json",
    "mini_vllm/config/*.toml",
    "mini_vllm/bundled/storyteller/tokenizer.json",
    "phases/*/profiles/*",
    "phases/*/phase.toml",
    "phases/*/hints.toml",
    "labkit/reader/assets/reader.css",
    "labkit/reader/assets/base.html",
    "labkit/reader/assets/portfolio.html",
    stepping.STORY,
)
"""Files that tests and runs read."""
Here = Mapping[str, Sequence[str]]
"""Phase -> its tasks that run in the tab."""
WHEN = (2020, 1, 1, 0, 0, 0)
"""The time of every entry: the same files give the same bundle."""


def contents(course: Course, here: Here | None = None) -> dict[str, bytes]:
    """Path in the checkout -> what stands there in the tab.

    Args:
        here: the tasks that run in the tab; default: those of `here.json`.

    Raises:
        ValueError: a task of `here` is none, or has no tests of its own.
    """
    here = in_the_tab.tasks() if here is None else here
    phases = phases_here(course, here)
    imports = Imports(course.root)
    roots = [course.root / name for name in ROOTS] + [*course.root.glob(QUESTIONS)]
    for phase in phases:
        roots += [phase.reference_file(module) for module in phase.modules]
        roots += list(test_files(phase, here[phase.slug]))
    owned = {p.reference_file(module) for p in course.ready for module in p.modules}
    light = [file for file in roots if file not in owned or not imports.foreign(file)]
    files = {file: file.read_bytes() for file in imports.reached(light) | owned_by(phases)}
    secret = {file for file in files if file in owned}
    for phase in phases:
        files |= _of_phase(phase)
        if mutants_file(phase).exists():
            secret.add(mutants_file(phase))
    files |= {file: file.read_bytes() for name in DATA for file in course.root.glob(name)}
    files |= dict(_counted(course))
    files[course.root / in_the_tab.NAME] = json.dumps(here).encode()
    named = {file.relative_to(course.root).as_posix(): data for file, data in files.items()}
    hidden = {file.relative_to(course.root).as_posix() for file in secret}
    plain = {name: data for name, data in named.items() if name not in hidden}
    return plain | {sealed.NAME: sealed.seal({name: named[name] for name in hidden})}


def phases_here(course: Course, here: Here | None = None) -> list[Phase]:
    """The phases of which a task runs in the tab.

    Raises:
        ValueError: `here` names a phase or a task that is none.
    """
    found = []
    for slug, names in (in_the_tab.tasks() if here is None else here).items():
        phase = course.phase(slug)
        for name in names:
            phase.exercise(name)
        found.append(phase)
    return found


def owned_by(phases: list[Phase]) -> set[Path]:
    """The reference's modules of some phases, those that need torch included: what explains a
    failure reads them all."""
    return {phase.reference_file(module) for phase in phases for module in phase.modules}


def test_files(phase: Phase, names: Sequence[str]) -> Iterator[Path]:
    """The tests of some of the phase's tasks, and what they share.

    Raises:
        ValueError: a task has no file of its own.
    """
    for file in files_of(phase, [phase.exercise(name) for name in names]):
        if file.is_dir():
            raise ValueError(f"phase {phase.slug}: each task of the tab needs a test_N_*.py")
        yield file
    yield phase.public_tests / "conftest.py"


def _of_phase(phase: Phase) -> dict[Path, bytes]:
    """Beside code and tests: skeletons, and what is recorded of mistakes."""
    known = [mutants_file(phase), vectors_file(phase), faults_file(phase)]
    known += [phase.folder / name for name in phase.traces]
    files = {file: file.read_bytes() for file in known if file.is_file()}
    for module in phase.modules:
        files[phase.lab_file(module)] = skeleton(phase, module).encode()
    return files


def _counted(course: Course) -> Iterator[tuple[Path, bytes]]:
    """Of hunts and change requests, what progress counts: their number."""
    for phase in course.ready:
        if hunts := counted.hunts(phase):
            yield counted.hunts_file(phase), b"[[hunts]]\n" * len(hunts)
        if changes := counted.changes(phase):
            yield counted.changes_file(phase), b"[[changes]]\n" * len(changes)


def packed(files: Mapping[str, bytes]) -> bytes:
    """Some files as a zip, the same bytes for the same files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name, WHEN), data, zipfile.ZIP_DEFLATED, 9)
    return buffer.getvalue()
