"""Does the checker find what it should? `python -m labkit.kernels.selftest [KIND...]`

Runs every bug of `controls.py`, or those whose finding has one of the kinds, and says which ones
escape. Exit code 1 if any does.
"""

from __future__ import annotations

import sys

from labkit.kernels import controls
from labkit.kernels.check import Checker, run_bug

SEED = 20


def escaped(checker: Checker, bugs: tuple[controls.Bug, ...]) -> list[tuple[controls.Bug, str]]:
    """The bugs that are not named by their kind, with what was found instead."""
    missed = []
    for bug in bugs:
        kinds = sorted({finding.kind for finding in run_bug(checker, bug, SEED)})
        if bug.kind not in kinds:
            missed.append((bug, ", ".join(kinds) or "nothing"))
    return missed


def main(words: list[str]) -> int:
    bugs = tuple(bug for bug in controls.BUGS if not words or bug.kind in words)
    with Checker() as checker:
        missed = escaped(checker, bugs)
    for bug, found in missed:
        print(f"escaped: {bug.spec}: {bug.about}: expected {bug.kind}, found {found}")
    print(f"{len(bugs) - len(missed)} of {len(bugs)} bugs are found")
    return 1 if missed or not bugs else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
