"""Which name somebody has probably meant who wrote one that is not there. Python says so itself,
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
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    inner = dict(frame.f_locals)
    while frame.f_code.co_name.startswith("<") and frame.f_back:  # a comprehension, a lambda
        frame = frame.f_back
    owner = frame.f_locals.get("self")
    if owner is not None and error.name in dir(owner):
        return f"self.{error.name}"
    return _nearest(error.name, [*inner, *frame.f_locals, *frame.f_globals, *dir(builtins)])


def _attribute(error: AttributeError) -> str:
    if found := re.fullmatch(r"module '([\w.]+)' has no attribute '(\w+)'", str(error)):
        return _nearest(
            found[2], dir(sys.modules.get(found[1]))
        )  # some modules raise it themselves
    return _nearest(error.name, dir(error.obj)) if error.obj is not None else ""


def _nearest(name: str | None, known: Iterable[str]) -> str:
    if not name:
        return ""
    public = [each for each in known if each[0] != "_" or name[0] == "_"]
    return next(iter(get_close_matches(name, public, 1, CLOSE)), "")
