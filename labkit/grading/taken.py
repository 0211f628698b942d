"""What is taken of a hand-in before anything runs: each declared file that is there, plain, and
Python; and why any other is not.

A file that is not taken costs the tasks that are written in it. The others are judged with the
reference's file in its place.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from labkit.course.manifest import Phase
from labkit.grading.result import Flag
from labkit.inside import child
from labkit.judge import readable
from labkit.process import overlay
from labkit.sandbox import build as sandbox

DROPPED = ("PYTEST_", "PYTHON", "HYPOTHESIS_", "LABKIT_", "COVERAGE_")
"""Variables that could change what pytest does; the grader sets its own."""


@dataclass(frozen=True)
class Problem:
    """Why a file, or a whole submission, cannot run: one of `result.KINDS`, and a sentence for the
    student."""

    kind: str
    text: str


@dataclass
class Taken:
    """What has become of a hand-in's files.

    Attributes:
        mapping: module -> copy of its file, for those that were taken.
        refused: module -> why its file was not.
        flags: functions that are the reference's.
    """

    mapping: dict[str, str] = field(default_factory=dict)
    refused: dict[str, Problem] = field(default_factory=dict)
    flags: list[Flag] = field(default_factory=list)

    @property
    def problem(self) -> str:
        return " · ".join(dict.fromkeys(problem.text for problem in self.refused.values()))


def take(
    phase: Phase, files: Mapping[str, Path], folder: Path, refused: Mapping[str, Problem]
) -> Taken:
    """Copy the declared files, and nothing else, into an empty folder; parse each in a child of its
    own.

    Args:
        refused: module -> why its file is not looked at.
    """
    taken = Taken(refused=dict(refused))
    for module in phase.modules:
        if module in refused:
            continue
        copy = Path(folder, phase.lab_file(module).name)
        try:
            copy.write_bytes(sandbox.declared({module: files[module]})[module])
        except sandbox.SubmissionError as error:
            missing = str(error).endswith("is missing")
            kind, todo = ("missing file", ": hand it in") if missing else ("cannot import", "")
            taken.refused[module] = Problem(kind, f"{error}{todo}")
            continue
        why, same = _parse(phase, module, folder)
        if why:
            taken.refused[module] = Problem("cannot import", f"{copy.name}: {why}")
            continue
        taken.mapping[module] = str(copy)
        taken.flags += [
            Flag("same as the reference", f"{copy.name}: {name}", f"the same tree, {nodes} nodes")
            for name, nodes in same
        ]
    return taken


def _parse(phase: Phase, module: str, folder: Path) -> tuple[str, list[tuple[str, int]]]:
    """Why the copy of a module's file is no Python, or ""; and its functions that are the
    reference's, with the sizes of their trees."""
    words = ["-m", "labkit.grading.likeness", str(phase.root), phase.slug, str(folder), module]
    done = child.run(words, overlay.environment(phase.root, {}, clean()), readable.LIMITS)
    if done.code != 0:
        much = "time" if done.timed_out or (done.code or 0) < 0 else "memory"
        said = f"Python's parser does not get through it: it takes too much {much}"
        return f"{said}; write long or deeply nested expressions as several statements", []
    found = json.loads(done.stdout)
    return found["broken"], found["same"]


def clean() -> dict[str, str]:
    """This process's environment without what steers Python, pytest or the course."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(DROPPED)}
    return kept | {"PYTHONSAFEPATH": "1", "PYTHONNOUSERSITE": "1"}
