"""Run what a learner has written so far: functions that are still open are the reference's."""

from __future__ import annotations

from collections.abc import Mapping

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
