"""Which of a submission's functions are the reference's, and whether the files are Python at all.

It parses text that nobody has checked, so the grader runs it as a child under limits:
`python -m labkit.grading.likeness ROOT SLUG FOLDER` prints one JSON object. Nothing is imported.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

from labkit.course import source
from labkit.course.files import read_python
from labkit.course.manifest import Course, Phase


def compare(phase: Phase, folder: Path) -> dict[str, Any]:
    """Look at the lab files in `folder`.

    Returns:
        broken: file -> why it is no Python; the type of the error and its line, none of its text.
        same: [file, function, nodes] for each hole whose body has the reference's syntax tree;
            comments, layout and docstring do not count. nodes: the size of that tree.
    """
    broken: dict[str, str] = {}
    same: list[list[Any]] = []
    for module in phase.modules:
        name = phase.lab_file(module).name
        try:
            text = read_python(folder / name)
        except SyntaxError as error:  # of its encoding: our own words
            broken[name] = error.msg
            continue
        try:
            theirs = source.functions(text, name)
        except source.UnresolvedMerge as error:
            broken[name] = error.msg
            continue
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
            broken[name] = f"{type(error).__name__}{line}"
            continue
        ours = source.functions(phase.reference_file(module).read_text(encoding="utf-8"), module)
        for function in phase.holes(module):
            if function in theirs and tree(theirs[function]) == tree(ours[function]):
                nodes = sum(1 for stmt in ours[function].statements for _ in ast.walk(stmt))
                same.append([name, function, nodes])
    return {"broken": broken, "same": same}


def tree(function: source.Function) -> str:
    """The syntax tree of a body as text, without its docstring."""
    return "\n".join(ast.dump(statement) for statement in function.statements)


if __name__ == "__main__":
    root, slug, given = sys.argv[1:]
    print(json.dumps(compare(Course(Path(root)).phase(slug), Path(given))))
