"""Slips of the fingers at `make`: what no target is called, and what is probably meant.

Only a spelling of exactly one target is run: `lab_03`, `Lab-03`, `read03`, `labs-3`. What is merely
near is suggested, since `reset` and `test` are not to be guessed at. Standard library only: this
runs where nothing is installed yet.
"""

from __future__ import annotations

import re
from difflib import get_close_matches

from labkit.course.root import ROOT

SYNONYMS = {
    "test": "lab",
    "check": "lab",
    "judge": "lab",
    "phase": "lab",
    "labs": "lab",
    "submit": "grade",
    "solution": "diff",
    "restore": "undo",
    "jupyter": "notebook",
}
"""What others call it; suggested with a phase's number, since some are targets without one."""


def targets() -> dict[str, bool]:
    """Every target of the Makefile -> whether a phase's number belongs behind it."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    rules = re.findall(r"^([a-z][a-z-]*?)(-%)?:(?!=)", text, re.M)
    return {name: (name, "-%") in rules for name, _ in rules}


def meant(typed: str) -> tuple[list[str], str]:
    """The words of the one command that `typed` spells, to be run; or none, and what to say.

    "Lab_3" -> (["lab", "3"], ""); "lbs-03" -> ([], "… did you mean `make lab-03`?").
    """
    known = targets()
    spelt = re.fullmatch(r"([a-z-]*?)-*(\d[\w.-]*)?", re.sub(r"[_\s]+", "-", typed.strip().lower()))
    verb, number = (spelt[1], spelt[2] or "") if spelt else (typed, "")
    if number and not verb:  # make lab 03
        return [], _says(typed, f"lab-{number}")
    if number and verb.endswith("s") and known.get(verb[:-1]):
        verb = verb[:-1]
    if verb in known and known[verb] == bool(number):
        return [verb, *filter(None, [number])], ""
    if known.get(verb):
        return [], f"say which phase: `make {verb}-03`; `make progress` lists them"
    if number and verb in SYNONYMS and known[SYNONYMS[verb]]:
        return [], _says(typed, f"{SYNONYMS[verb]}-{number}")
    if verb in known:
        return [], f"`make {verb}` is for the whole course and takes no phase: `make {verb}`"
    near = get_close_matches(verb, [*known, *SYNONYMS], n=1)
    if not near:
        return [], _says(typed)
    name = SYNONYMS.get(near[0], near[0])
    return [], _says(typed, f"{name}-{number or '03'}" if known[name] else name)


def _says(typed: str, target: str = "") -> str:
    guess = f"did you mean `make {target}`? " if target else ""
    return f"there is no `make {typed}`; {guess}`make` alone lists what there is"
