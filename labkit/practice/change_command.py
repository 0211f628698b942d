"""`make change-03`: the phase's change requests. `make change-03.1`: begin one, or have it
judged."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any

import typer

from labkit.course import source
from labkit.course.console import Screen, course, polite, ready_phase, some
from labkit.course.files import read_python
from labkit.course.manifest import ManifestError, Phase
from labkit.inside.alarm import shorten
from labkit.judge import diagnose, public, readable
from labkit.judge.suspects import frame_in, source_line
from labkit.practice import changes, copies
from labkit.practice.changes import Change

TABLE = "changes"
"""In `.labkit/state.json`: change -> {"begun": when, "solved": when}."""


@polite
def main(
    which: str = typer.Argument(help="a phase (03) or one of its change requests (03.1)"),
    again: bool = typer.Option(False, "--again", help="begin anew; what you have is backed up"),
    tell: bool = typer.Option(False, "--tell", help="give up, and see one solution"),
    yes: bool = typer.Option(False, "--yes", help="begin, though the copy solves open tasks"),
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
        command = f'make change-{change.id} ARGS="{"--again " * again}--yes"'
        if not copies.may_open(out, change.phase, change.module, command, yes):
            raise typer.Exit(1)
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
    """The public tests, then, if these pass, the hidden ones."""
    out.line(f"change-{change.id} · {change.title}", "bold")
    out.line(f"judged: {change.shown(change.file)}", "dim")
    out.line()
    rounds = [("public", change.public_tests), ("hidden", change.hidden_tests)]
    for name, tests in rounds:
        if not tests.exists():
            out.line(f"… {name} tests are not here", "yellow")
        elif not passes(out, change, name, tests):
            out.line()
            out.line(f"next: edit {to_edit(change)}, then make change-{change.id}", "bold")
            return False
    out.line()
    show_solution(out, change)
    if "solved" not in record_of(change):
        put(change, solved=copies.now())
    return True


def to_edit(change: Change) -> str:
    """ "changes/03.1/scheduler.py:412 (Scheduler._pick_victim)": where it most probably happens."""
    known = source.functions(read_python(change.file))
    lines = [known[name].line for name in change.functions if name in known]
    line = f":{lines[0]}" if lines else ""
    return f"{change.shown(change.file)}{line} ({some(change.functions)})"


def passes(out: Screen, change: Change, name: str, tests: Path) -> bool:
    """Judge one file of tests, and name each rule of it that does not hold.

    Raises:
        SyntaxError: the copy is no Python, or costs too much to read.
    """
    shown = change.shown(change.file)
    if readable.first_too_much(change.phase.root, [change.file]):
        raise source.NestedTooDeeply("costs Python too much to read", (shown, None, None, None))
    source.compiled(read_python(change.file), shown)
    result = changes.judge(change, tests)
    failed = [test for test in result.tests if not test.passed]
    good = bool(result.tests) and not result.broken and not failed
    passed = len(result.tests) - len(failed)
    mark, style = ("✓", "green") if good else ("✗", "red")
    out.line(f"{mark} {name} tests: {passed} of {len(result.tests)}", style)
    if result.broken:
        lines = re.findall(rf"{re.escape(shown)}\D{{1,8}}(\d+)", result.broken)
        said = re.sub(r"^E\s+", "", result.broken.strip().splitlines()[-1])
        where = ":".join([shown, *lines[-1:]])
        out.line(f"{where} fails while it is imported: {said}", "red", 4)
    for rule in {rule_of(test): test for test in reversed(failed)}.values():
        show_failed(out, change, rule, name == "public")
    return good


def rule_of(test: public.Test) -> str:
    """What a test demands: the sentence it begins with, or its name in words; the same for each of
    the inputs that one rule is tried with."""
    bare = test.name.partition("[")[0]
    words = re.sub(r"^test_change_\d+_", "", bare).replace("_", " ")
    return words if test.title.partition("[")[0] == bare else test.title


def show_failed(out: Screen, change: Change, test: public.Test, whole: bool) -> None:
    """One rule that does not hold, and where it was noticed.

    Args:
        whole: with both sides of the comparison; the inputs of hidden tests stay hidden.
    """
    detail = test.detail
    out.line(f"✗ {rule_of(test)}", "red", 4)
    if whole:
        for key in ("at", "yours", "expected") if "at" in detail else ("message",):
            if value := detail.get(key):
                out.pair(key, shorten(str(value), 600), "", 6)
    elif "at" not in detail and detail.get("error") not in (None, "AssertionError"):
        out.pair("raised", detail["error"], "", 6)
    place = frame_in(test, change.folder)
    if test.outcome == "hang":
        out.line("It did not end, so it was stopped (endless loop?).", indent=6)
    if place:
        code = shorten(source_line(*place[:2]), 100)
        out.line(f"in {place[2]}, {change.shown(place[0])}:{place[1]}: {code}", indent=6)
    out.pair("test", diagnose.test_line(test, change.phase), "", 6)


def show_solution(out: Screen, change: Change) -> None:
    """One solution beside the reference, and what there is to say about it."""
    before = change.phase.reference_file(change.module).read_text(encoding="utf-8").splitlines()
    after = changes.solved_text(change).splitlines()
    out.line("One solution:", "bold")
    for line in list(difflib.unified_diff(before, after, n=2, lineterm=""))[2:]:
        out.line(line, {"+": "green", "-": "red", "@": "dim"}.get(line[:1], ""), 2)
    out.line()
    out.line(changes.solution(change)["discussion"].strip())
