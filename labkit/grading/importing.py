"""Which files of a hand-in cannot be imported, when some could not be.

In a worker one file imports the next, so one that raises, hangs or ends the process takes others
with it. Each is tried alone, among the reference's files, in a sandbox as strong as the grade's.
That runs in a child, because code of a hand-in could end the process that loads it:
`python -m labkit.grading.importing ROOT SLUG RUNG MAPPING SUSPECT…` prints one JSON object.
"""

from __future__ import annotations

import builtins
import contextlib
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from labkit.course.manifest import Course, Phase
from labkit.grading.taken import Problem, clean
from labkit.inside import child
from labkit.judge.hidden import SandboxBroken, Subject, TaskLost
from labkit.process import overlay
from labkit.process.worker import WorkerError
from labkit.sandbox.build import Sandbox
from labkit.sandbox.isolation import LADDER

LIMITS = child.Limits(seconds=300, memory_mb=2048)
"""For all files: one that hangs costs the time that a grade has for its imports."""
KINDS = {"cannot import", "endless loop", "crash", "memory", "garbage"}
HOW = {"endless loop": "does not end", "crash": "ends the whole process", "memory": "fills memory"}
STANDS_IN = "its tasks are lost, and for the others the reference's file stands in"


def culprits(
    phase: Phase, mapping: Mapping[str, str], rung: str, suspects: Iterable[str]
) -> dict[str, Problem]:
    """Module -> why its file cannot be imported, for those that are to blame themselves.

    Args:
        mapping: module -> file of the hand-in.
        rung: of `isolation.LADDER`.
        suspects: modules whose import has failed, perhaps through another one's fault.
    """
    first = [module for module in phase.modules if module in mapping and module in set(suspects)]
    rest = [module for module in phase.modules if module in mapping and module not in first]
    return _found(phase, mapping, rung, first) or _found(phase, mapping, rung, rest)


def _found(
    phase: Phase, mapping: Mapping[str, str], rung: str, modules: list[str]
) -> dict[str, Problem]:
    words = ["-m", "labkit.grading.importing", str(phase.root), phase.slug, rung]
    words += [json.dumps(dict(mapping)), *modules]
    done = child.run(words, overlay.environment(phase.root, {}, clean()), LIMITS)
    with contextlib.suppress(ValueError, AttributeError, TypeError):
        told = json.loads(done.stdout)
        return {
            module: Problem(str(kind), f"{phase.lab_file(module).name} {how}; {STANDS_IN}")
            for module, (kind, how) in told.items()
            if module in modules and kind in KINDS
        }
    return {}  # it has ended, or spoilt, the child that looked; nothing is known, as before


def try_alone(phase: Phase, module: str, file: Path, rung: str) -> tuple[str, str] | None:
    """Import all of a phase's modules, one of them the hand-in's: (kind, what it does), if one of
    them cannot be imported then."""
    files = {each: phase.reference_file(each).read_bytes() for each in phase.modules}
    box = Sandbox(phase, files | {module: file.read_bytes()}, LADDER[rung])
    with Subject(phase, box) as subject:
        assert isinstance(subject, Subject)
        with contextlib.suppress(WorkerError, TaskLost, SandboxBroken):
            subject.call("labkit.inside.basic:ping")
        if not subject.unusable:
            return None
        if module not in subject.unusable:
            others = [phase.lab_file(each).name for each in subject.unusable]
            return "cannot import", f"lacks a name that {others[0]} imports from it"
        kind = subject.unusable[module]
        return kind, f"{HOW.get(kind) or _raised(subject, module)} when it is imported"


def _raised(subject: Subject, module: str) -> str:
    """ "raises ValueError in line 12": nothing of the file's own words, which end in a table that
    an instructor opens."""
    about: dict[str, Any] = subject.raised_by.get(module, {})
    known = about.get("type") in vars(builtins)
    name = subject.phase.lab_file(module).name
    lines = [line for file, line, _ in about.get("frames", []) if Path(str(file)).name == name]
    where = f" in line {lines[-1]}" if lines and type(lines[-1]) is int else ""
    return f"raises {about['type'] if known else 'an exception'}{where}"


def main(root: str, slug: str, rung: str, mapping: str, *modules: str) -> None:
    """Try some modules of a hand-in, and print what is wrong with them."""
    phase, files = Course(Path(root)).phase(slug), json.loads(mapping)
    tried = {module: try_alone(phase, module, Path(files[module]), rung) for module in modules}
    print(json.dumps({module: why for module, why in tried.items() if why}))


if __name__ == "__main__":
    main(*sys.argv[1:])
