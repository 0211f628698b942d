"""Hints of a task with several functions: what is about the one that the learner is at.

The hints in `hints.toml` name a function where they speak of it: "touch: if ref_cnt == 0, …". What
has no name in front is about the whole task.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

BEGINNING = re.compile(r"(?:^|(?<=[.;] ))(?=`?[A-Za-z_][\w ]{1,30}`?: )")
NAME = re.compile(r"`?([A-Za-z_][\w ]{1,30})`?: ")


def parts(hint: str, functions: Sequence[str]) -> list[tuple[str, str]]:
    """The hint cut where it begins to speak of another function: (function or "", text)."""
    found = []
    for text in BEGINNING.split(hint):
        named = NAME.match(text)
        found.append((_meant(named[1], functions) if named else "", text))
    return found


def _meant(label: str, functions: Sequence[str]) -> str:
    """The one function that a label such as "uncache" or "Decode" stands for; "" if it is not
    plain which."""
    word = _letters(label)
    exact = [name for name in functions if _letters(name.rpartition(".")[2]) == word]
    near = [name for name in functions if len(word) > 2 and word in _letters(name)]
    fitting = exact or near
    return fitting[0] if len(fitting) == 1 else ""


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def about(hint: str, functions: Sequence[str], function: str) -> tuple[str, list[str]]:
    """The hint without what it says of the task's other functions, and the names of these. All of
    it where it does not name `function`, for then it is not plain what is about it."""
    cut = parts(hint, functions)
    named = {name for name, _ in cut if name}
    others = [name for name in functions if name in named and name != function]
    unnamed = [name for name in functions if name not in named]
    plain = function in named or unnamed == [function]
    if not plain or not others:
        return hint, []
    return "".join(text for name, text in cut if name not in others).strip(), others
