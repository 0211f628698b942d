"""Which name was probably meant by one that does not exist. Python says so itself,
but only where it prints a whole traceback."""

from __future__ import annotations

import builtins
import re
import sys
import traceback
from collections.abc import Iterable
from difflib import get_close_matches

CLOSE = 0.75
"""Of 1 for the same: "last_row" and "last_rows" have 0.94, "append" and "appendleft" 0.75."""


def meant(error: BaseException) -> str:
    """ "last_rows" for an error about "last_row", "self.k" for a lone "k"; "" if none is near."""
    try:
        if isinstance(error, NameError):
            return _variable(error)
        if isinstance(error, AttributeError):
            return _attribute(error)
    except Exception:  # what a learner's object answers to `dir` may raise anything
        return ""
    return ""


def _variable(error: NameError) -> str:
    *_, (inner, _) = traceback.walk_tb(error.__traceback__)
    file = inner.f_code.co_filename  # a comprehension or a function in another sees not all of it
    frames = [f for f, _ in traceback.walk_tb(error.__traceback__) if f.f_code.co_filename == file]
    known = {name: value for frame in frames for name, value in frame.f_locals.items()}
    if "self" in known and error.name in dir(known["self"]):
        return f"self.{error.name}"
    return _nearest(error.name, [*known, *inner.f_globals, *dir(builtins)])


def _attribute(error: AttributeError) -> str:
    if found := re.fullmatch(r"module '([\w.]+)' has no attribute '(\w+)'", str(error)):
        known = dir(sys.modules.get(found[1]))  # some modules raise it themselves, with no `obj`
        return _nearest(found[2], known)
    return _nearest(error.name, dir(error.obj)) if error.obj is not None else ""


def _nearest(name: str | None, known: Iterable[str]) -> str:
    if not name:
        return ""
    public = [each for each in known if each[0] != "_" or name[0] == "_"]
    return next(iter(get_close_matches(name, public, 1, CLOSE)), "")
