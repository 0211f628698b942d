"""Whether a file of a hand-in is Python at all, and which of its functions are the reference's.

It parses text that is not checked, so the grader runs it as a child under limits:
`python -m labkit.grading.likeness ROOT SLUG FOLDER MODULE` prints one JSON object. Nothing is
imported.
"""

from __future__ import annotations

import ast
import json
import keyword
import re
import sys
from pathlib import Path
from typing import Any

from labkit.course import source
from labkit.course.files import read_python
from labkit.course.manifest import Course, Phase
from labkit.judge import readable

SAID_IN_QUOTES = {"print", "exec", "unicodeescape", *keyword.kwlist}
"""Words that Python's own sentences quote; any other may be the file's."""


def compare(phase: Phase, module: str, folder: Path) -> dict[str, Any]:
    """Look at the file of one module in `folder`.

    Returns:
        broken: why it is no Python (`why_broken`), or "".
        same: [function, nodes] for each hole whose body has the reference's syntax tree; comments,
            layout and docstring do not count. nodes: the size of that tree.
    """
    name = phase.lab_file(module).name
    try:
        text = read_python(folder / name)
    except SyntaxError as error:  # of its encoding: our own words
        return {"broken": error.msg, "same": []}
    try:
        theirs = source.functions(text, name)
        if not source.parse(text, name).body:
            return {"broken": "it is empty: hand in the file that you have written", "same": []}
        compile(text, name, "exec", dont_inherit=True)  # finds what is wrong with a right tree
    except source.UnresolvedMerge as error:
        return {"broken": f"{error.msg}; keep one side and delete the marks", "same": []}
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return {"broken": why_broken(error), "same": []}
    ours = source.functions(phase.reference_file(module).read_text(encoding="utf-8"), module)
    same = [
        [function, sum(1 for stmt in ours[function].statements for _ in ast.walk(stmt))]
        for function in phase.holes(module)
        if function in theirs and tree(theirs[function]) == tree(ours[function])
    ]
    return {"broken": "", "same": same}


def why_broken(error: SyntaxError | ValueError | RecursionError | MemoryError) -> str:
    """What the parser stumbled over, where, and what to do: none of the file's own text gets into a
    table that an instructor opens."""
    if isinstance(error, (RecursionError, MemoryError, source.NestedTooDeeply)):
        return "it nests too deeply for Python's parser; write it as several statements"
    said, line = str(error), getattr(error, "lineno", None)
    where = f"line {line}" if line else "one line"
    if found := re.search(r"invalid .*character .*(U\+[0-9A-F]{4,6})", said):
        return f"{where} holds the character {found[1]}, often an invisible one; delete it there"
    if "integer string conversion" in said:
        return f"{where} holds a number of more digits than Python reads; compute it"
    if "too many" in said:  # nested parentheses, statically nested blocks
        return f"{where} nests too deeply for Python's parser; write it as several statements"
    kind, told = type(error).__name__, _of_python(getattr(error, "msg", ""))
    return f"{kind}, line {line}{told}; mend that line, or the one above it" if line else kind


def _of_python(said: str) -> str:
    """ ": '(' was never closed", if nothing in what Python says is taken from the file."""
    quoted = re.findall(r"'([^']*)'", said)
    own = [word for word in quoted if re.search(r"\w", word) and word not in SAID_IN_QUOTES]
    plain = said.isascii() and said.isprintable() and len(said) <= 120
    return f": {said}" if said and plain and not own else ""


def tree(function: source.Function) -> list[Any]:
    """The syntax tree of a body without its docstring: its parts in the order of the text.

    Without recursion, in which each `elif` lies within the one before; and with values as they
    are, for Python writes no number of 5,000 digits that a file may hold as `0x…`.
    """
    parts: list[Any] = []
    waiting: list[Any] = [function.statements]
    while waiting:
        part = waiting.pop()
        inner: list[Any] = []
        if isinstance(part, ast.AST):
            inner = [getattr(part, field, None) for field in part._fields]
        elif isinstance(part, list):
            inner = part
        parts.append((type(part), len(inner) if isinstance(part, ast.AST | list) else part))
        waiting += reversed(inner)
    return parts


if __name__ == "__main__":
    root, slug, given, name = sys.argv[1:]
    phase = Course(Path(root)).phase(slug)
    with readable.within_reason():
        found = compare(phase, name, Path(given))
    print(json.dumps(found))
