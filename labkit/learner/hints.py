"""Hints: which come first, and what of them is about the function that the learner is at.

The hints in `hints.toml` name a function where they speak of it: "touch: if ref_cnt == 0, …". What
has no name in front is about the whole task.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

from labkit.inside.alarm import shorten
from labkit.judge.public import Test

MOST_LINES = 8
MOST_CHARACTERS = 160
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


def failure(tests: Sequence[Test], known: Collection[str] = ()) -> dict[str, Any]:
    """What `hint` shows of a task's failing tests: of the first that has a hint of its own, else of
    the first, its name without parameters, its title, and the smallest input with which it fails.

    Args:
        known: tests that have a hint.
    """
    failed = [test for test in tests if test.outcome in ("failed", "hang")]
    first = next((test for test in failed if _function(test) in known), failed[0])
    cases = [shown_input(test) for test in failed if _function(test) == _function(first)]
    smallest = min(cases, key=lambda lines: len("".join(lines)))
    return {"test": _function(first), "title": first.title, "lines": smallest}


def _function(test: Test) -> str:
    """Its name without parameters."""
    return test.name.partition("[")[0]


def shown_input(test: Test) -> list[str]:
    """Where a test differs first, the state before, yours and what was expected; where nothing was
    compared, what was said."""
    detail = test.detail
    if "at" in detail:
        pairs = {**detail["state"], "yours": detail["yours"], "expected": detail["expected"]}
        pairs |= {"differs": detail["differs"]} if detail.get("differs") else {}
        width = max(map(len, pairs))
        lines = [detail["at"], *(f"{name:<{width}}  {value}" for name, value in pairs.items())]
    elif test.outcome == "hang":
        lines = ["it did not end"]
    else:
        said = str(detail.get("message", "")).strip().splitlines()
        lines = [": ".join(filter(None, (str(detail.get("error", "")), *said[:1]))), *said[1:]]
    return [shorten(line, MOST_CHARACTERS) for line in lines[:MOST_LINES] if line.strip()]
