"""`make change-03`: the phase's change requests. `make change-03.1`: begin one, or have it
judged."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import typer

from labkit.course.console import Screen, course, polite, ready_phase
from labkit.course.manifest import ManifestError, Phase
from labkit.practice import changes, copies
from labkit.practice.changes import Change

TABLE = "changes"
"""In `.labkit/state.json`: change -> {"begun": when, "solved": when}."""


@polite
def main(
    which: str = typer.Argument(help="a phase (03) or one of its change requests (03.1)"),
    again: bool = typer.Option(False, "--again", help="begin anew; what you have is backed up"),
    tell: bool = typer.Option(False, "--tell", help="give up, and see one solution"),
) -> None:
    """A requirement changes, as it does at work: change your module, and have it judged."""
    known, out = course(), Screen()
    if "." not in which:
        show_all(out, ready_phase(which))
        return
    change = changes.find(known, which)
    if tell:
        show_solution(out, change)
    elif again or not change.file.exists():
        start(out, change)
    else:
        raise typer.Exit(0 if check(out, change) else 1)


def record_of(change: Change) -> dict[str, Any]:
    return copies.recall(TABLE, change.phase, change.id)


def put(change: Change, **values: Any) -> None:
    copies.note(TABLE, change.phase, change.id, **values)


def show_all(out: Screen, phase: Phase) -> None:
    found = changes.load(phase)
    if not found:
        raise ManifestError(f"phase {phase.number} has no change requests")
    out.line(f"change-{phase.number} · {phase.title}", "bold")
    out.line("A requirement changes. You work in a copy: your files stay as they are.")
    out.line()
    for change in found:
        solved, begun = "solved" in record_of(change), change.file.exists()
        mark, style = ("✓", "green") if solved else ("…", "yellow") if begun else ("○", "dim")
        out.line(f"{mark} {change.id} {change.title}", style, 2)
    following = next((c for c in found if "solved" not in record_of(c)), found[0])
    out.line()
    out.line(f"next: make change-{following.id}", "bold")


def start(out: Screen, change: Change) -> None:
    kept = changes.begin(change)
    out.line(f"change-{change.id} · {change.title}", "bold")
    if kept:
        out.line(f"what you had is in {change.shown(kept)}", "dim")
    out.line()
    out.line(change.request, indent=2)
    out.line()
    out.pair("edit", f"{change.shown(change.file)} ({', '.join(change.functions)})", "", 0, 6)
    out.pair("tests", change.shown(change.public_tests), "", 0, 6)
    out.pair("then", f"make change-{change.id}", "", 0, 6)
    put(change, begun=copies.now())


def check(out: Screen, change: Change) -> bool:
    """The public tests, then the hidden ones, then the phase's own, which must go on passing."""
    out.line(f"change-{change.id} · {change.title}", "bold")
    out.line(f"judged: {change.shown(change.file)}", "dim")
    out.line()
    rounds = [("public", change.public_tests), ("hidden", change.hidden_tests)]
    for name, tests in rounds:
        if not tests.exists():
            out.line(f"… {name} tests are not here", "yellow")
        elif not passes(out, change, name, tests):
            out.line()
            out.line(
                f"next: edit {change.shown(change.file)}, then make change-{change.id}", "bold"
            )
            return False
    out.line()
    show_solution(out, change)
    if "solved" not in record_of(change):
        put(change, solved=copies.now())
    return True


def passes(out: Screen, change: Change, name: str, tests: Path) -> bool:
    result = changes.judge(change, tests)
    failed = [test for test in result.tests if not test.passed]
    good = bool(result.tests) and not result.broken and not failed
    passed = len(result.tests) - len(failed)
    mark, style = ("✓", "green") if good else ("✗", "red")
    out.line(f"{mark} {name} tests: {passed} of {len(result.tests)}", style)
    if result.broken:
        out.line(result.broken.strip().splitlines()[-1], "red", 4)
    for test in failed[:1] if name == "public" else []:
        out.line(test.title, indent=4)
        compared = "at" in test.detail
        for key in ("at", "yours", "expected") if compared else ("message",):
            if value := test.detail.get(key):
                out.pair(key, str(value)[:600], "", 6)
    return good


def show_solution(out: Screen, change: Change) -> None:
    """One solution beside the reference, and what there is to say about it."""
    before = change.phase.reference_file(change.module).read_text(encoding="utf-8").splitlines()
    after = changes.solved_text(change).splitlines()
    out.line("One solution:", "bold")
    for line in list(difflib.unified_diff(before, after, n=2, lineterm=""))[2:]:
        out.line(line, {"+": "green", "-": "red", "@": "dim"}.get(line[:1], ""), 2)
    out.line()
    out.line(changes.solution(change)["discussion"].strip())
