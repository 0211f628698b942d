"""Run what a learner has written so far: functions that are still open are the reference's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from labkit.course import source
from labkit.course.files import read_python, write_text
from labkit.course.manifest import Phase
from labkit.course.skeleton import is_hole

FOLDER = ".labkit/borrowed"


def borrow(phase: Phase, mapping: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The mapping with copies in place of those lab files that have open functions, and the names
    of these functions, whose bodies in the copies are the reference's.

    A file that is no Python, or lacks a function, stays as it is: to import it says why.
    """
    complete, borrowed = dict(mapping), list[str]()
    for module in phase.modules:
        path = phase.lab_file(module)
        if mapping.get(module) != str(path):
            continue
        try:
            text, names = _filled(phase, module)
        except (OSError, SyntaxError, source.SourceError):
            continue
        if names:
            copy = phase.root / FOLDER / phase.slug / path.name
            write_text(copy, text)
            complete[module] = str(copy)
            borrowed += names
    return complete, borrowed


def borrow_all(phases: Iterable[Phase], mapping: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """The same for several phases, and what is the learner's in it: "yours: 12.1, 12.2; …"."""
    complete, told = dict(mapping), list[str]()
    for phase in phases:
        complete, names = borrow(phase, complete)
        told.append(whose(phase, names))
    return complete, "\n".join(told)


def whose(phase: Phase, borrowed: Iterable[str]) -> str:
    """Which tasks are the learner's and which the reference's, where these are not written yet."""
    missing = set(borrowed)
    left = {
        task.id: [name for name in task.functions if name in missing] for task in phase.exercises
    }
    mine = [task.id for task in phase.exercises if not left[task.id]]
    if not any(left.values()):
        return f"yours: all of phase {phase.number}"
    theirs = [
        task.id if len(left[task.id]) == len(task.functions) else ", ".join(left[task.id])
        for task in phase.exercises
        if left[task.id]
    ]
    yours = ", ".join(mine) if mine else f"no whole task of phase {phase.number} yet"
    return f"yours: {yours}\nthe reference's, not written yet: {', '.join(theirs)}"


def in_lab(root: Path, file: str, line: int) -> tuple[Path, int] | None:
    """Where a line that ran stands in the learner's files, for in a copy with borrowed functions it
    has another number; of a borrowed function the line of its `def`. None in other files."""
    path = Path(file)
    folder, mine = path.parent.parent, root / "labs" / path.parent.name / path.name
    if folder == root / "labs":
        return path, line
    if folder != root / FOLDER:
        return None
    try:
        known = source.functions(read_python(mine))
        ran = source.functions(read_python(path))
    except (OSError, SyntaxError):  # changed since
        return mine, line
    for name, function in ran.items():
        if function.first_line <= line <= function.end_line and name in known:
            offset = line - function.line
            return mine, known[name].line + (0 if is_hole(known[name]) else offset)
    return mine, line


def _filled(phase: Phase, module: str) -> tuple[str, list[str]]:
    """The text of a lab file without an open function, and the names of those that were."""
    text = read_python(phase.lab_file(module))
    reference = phase.reference_file(module).read_text(encoding="utf-8")
    known = source.functions(text)
    names = [name for name in phase.holes(module) if name in known and is_hole(known[name])]
    for name in names:
        body = source.body_text(reference, source.find(reference, name))
        text = source.replace_body(text, name, body)
    return text, names
