"""`make hunt-03`: the phase's bug hunts. `make hunt-03.2`: begin one, go on with it, or have it
judged."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import typer

from labkit.course import source
from labkit.course.console import Screen, course, polite, ready_phase, some
from labkit.course.manifest import ManifestError, Phase
from labkit.judge import public
from labkit.practice import copies, hunts
from labkit.practice.hunts import CLUES, Hunt

SHOWN_LINES = 3
TABLE = "hunts"
"""In `.labkit/state.json`: hunt -> {"begun": when, "own": whether the copy was made of the
learner's module, "clues": n, "named": …, "solved": when}."""


@polite
def main(
    which: str = typer.Argument(help="a phase (03) or one of its hunts (03.2)"),
    name: str = typer.Option("", help="the function that you think is wrong"),
    clue: bool = typer.Option(False, "--clue", help="the next clue: where, which rule, when"),
    again: bool = typer.Option(False, "--again", help="begin anew; what you have is backed up"),
    tell: bool = typer.Option(False, "--tell", help="give up, and hear the whole story"),
    run: bool = typer.Option(False, "--run", help="the report's script alone, with your file"),
    profile: bool = typer.Option(False, "--profile", help="where that script spends its time"),
    yes: bool = typer.Option(False, "--yes", help="begin, though the copy solves open tasks"),
) -> None:
    """Find and mend a bug that an engine really had; the hidden suite judges."""
    known, out = course(), Screen()
    if "." not in which:
        show_all(out, ready_phase(which))
        return
    hunt = hunts.find(known, which)
    if not hunt.phase.hidden_tests.exists():
        raise ManifestError(
            "hunts are judged by the hidden suites, which are sealed here: ask your instructor for"
            " the key, then `python -m labkit unseal KEY`"
        )
    if tell:
        show_story(out, hunt)
    elif again or not hunt.file.exists():
        command = f'make hunt-{hunt.id} ARGS="{"--again " * again}--yes"'
        if not copies.may_open(out, hunt.phase, hunt.mistake.module, command, yes):
            raise typer.Exit(1)
        start(out, hunt)
    elif clue:
        show_clues(out, hunt)
    elif run:
        raise typer.Exit(hunts.rerun(hunt))
    elif profile:
        raise typer.Exit(hunts.profile(hunt, hunt.folder / "profile.html"))
    elif name:
        raise typer.Exit(0 if check_name(out, hunt, name) else 1)
    else:
        raise typer.Exit(0 if check(out, hunt) else 1)


def record_of(hunt: Hunt) -> dict[str, Any]:
    return copies.recall(TABLE, hunt.phase, hunt.id)


def put(hunt: Hunt, **values: Any) -> None:
    copies.note(TABLE, hunt.phase, hunt.id, **values)


def show_all(out: Screen, phase: Phase) -> None:
    found = hunts.load(phase)
    if not found:
        raise ManifestError(f"phase {phase.number} has no hunts")
    out.line(f"hunt-{phase.number} · {phase.title}", "bold")
    out.line("Each is a bug that is put into a copy of one module: of yours, where its tasks are"
             " green, else of the engine's. Your files stay as they are.")  # fmt: skip
    out.line()
    for hunt in found:
        record = record_of(hunt)
        word = "solved" if "solved" in record else "begun" if hunt.file.exists() else "new"
        mark, style = {"solved": ("✓", "green"), "begun": ("…", "yellow")}.get(word, ("○", "dim"))
        out.line(f"{mark} {hunt.id} {hunt.title}  ({word})", style, 2)
    out.line()
    say_next(out, phase)


def say_next(out: Screen, phase: Phase) -> None:
    """The phase's first hunt that is open."""
    found = hunts.load(phase)
    following = next((hunt for hunt in found if "solved" not in record_of(hunt)), None)
    if following is not None:
        out.line(f"next: make hunt-{following.id}", "bold")
        return
    again = f'make hunt-{found[0].id} ARGS="--again"'
    out.line(f"all hunts of this phase are solved; {again} begins one anew", "bold")


def start(out: Screen, hunt: Hunt) -> None:
    """Write the working copy and the report, and show what the user says."""
    out.line(f"hunt-{hunt.id} · {hunt.title}", "bold")
    out.line("running what the user ran, to record it …", "dim")
    kept = hunts.begin(hunt)
    if kept:
        out.line(f"what you had is in {hunt.shown(kept)}", "dim")
    out.line()
    out.line(hunt.symptom, indent=2)
    out.line()
    out.pair("read", hunt.shown(hunt.folder / "REPORT.md"), "", 0, 6)
    if (hunt.folder / "timeline.jsonl").exists():
        trace = hunt.shown(hunt.folder / "timeline.jsonl")
        out.pair("look", f"make inspect TRACE={trace}", "", 0, 6)
    out.pair("mend", hunt.shown(hunt.file), "", 0, 6)
    out.pair("then", f"make hunt-{hunt.id}", "", 0, 6)
    out.pair("try", f'make hunt-{hunt.id} ARGS="--run"', "", 0, 6)
    if hunt.is_seen_in_a_profile:
        out.pair("slow?", f'make hunt-{hunt.id} ARGS="--profile"', "", 0, 6)
    out.pair("stuck?", f'make hunt-{hunt.id} ARGS="--clue"', "", 0, 6)
    out.pair("sure?", f'make hunt-{hunt.id} ARGS="--name THE_FUNCTION"', "", 0, 6)
    own = copies.own_text(hunt.phase, hunt.mistake.module) is not None
    put(hunt, begun=copies.now(), clues=0, own=own)


def show_clues(out: Screen, hunt: Hunt) -> None:
    shown = min(record_of(hunt).get("clues", 0) + 1, len(CLUES))
    out.line(f"hunt-{hunt.id} · {hunt.title}", "bold")
    for level in range(shown):
        style = "" if level == shown - 1 else "dim"
        out.line(f"{level + 1} of {len(CLUES)}, {CLUES[level]}: {hunt.clues[level]}", style)
    put(hunt, clues=shown)


def check_name(out: Screen, hunt: Hunt, name: str) -> bool:
    """Whether it is that function; a method may be named without its class."""
    right = hunt.mistake.function
    good = name in (right, right.rpartition(".")[2])
    if good:
        left = "" if "solved" in record_of(hunt) else f" Mend it in {hunt.shown(hunt.file)}."
        out.line(f"✓ {right} it is.{left}", "green")
        put(hunt, named=right)
    elif name not in function_names(hunt):
        out.line(f"✗ {hunt.file.name} has no function {name}", "red")
    else:
        out.line(f"✗ not {name}; the mistake is in another function of {hunt.file.name}", "red")
    return good


def function_names(hunt: Hunt) -> set[str]:
    """Functions of the hunt's module, methods with and without their class."""
    full = set(source.functions(hunt.mistake.text))
    return full | {name.rpartition(".")[2] for name in full}


def check(out: Screen, hunt: Hunt) -> bool:
    """Judge the working copy: first the report's script, then the hidden tests."""
    out.line(f"hunt-{hunt.id} · {hunt.title}", "bold")
    out.line(f"judged: {hunt.shown(hunt.file)}", "dim")
    out.line()
    mapping = {hunt.mistake.module: str(hunt.file)}
    out.line(f"running the report's script twice, with your {hunt.file.name} and without …", "dim")
    seen, expected = hunts.observe(hunt, mapping), hunts.observe(hunt, {})
    if seen != expected:
        show_difference(out, seen, expected)
        out.line(f'next: edit {hunt.shown(hunt.file)}; make hunt-{hunt.id} ARGS="--clue" helps',
                 "bold")  # fmt: skip
        return False
    last = f": {seen.splitlines()[-1]}" if hunt.wrong_fixes else ""
    out.line(f"✓ the script prints what it should{last}", "green")
    tasks = some(hunts.judged_tasks(hunt))
    out.line(f"running the hidden tests of {tasks}, which may take a minute …", "dim")
    result = hunts.judge(hunt)
    failed = [test for test in result.tests if not test.passed]
    if result.broken or failed or not result.tests:
        show_failed(out, hunt, result, failed)
        return False
    out.line(f"✓ the hidden tests pass: {len(result.tests)} of {len(result.tests)}", "green")
    out.line()
    show_story(out, hunt)
    if "solved" not in record_of(hunt):
        put(hunt, solved=copies.now())
    out.line()
    say_next(out, hunt.phase)
    return True


def show_difference(out: Screen, seen: str, expected: str) -> None:
    """The first lines that differ, as the user would point at them."""
    out.line("✗ the user still sees:", "red")
    pairs = list(zip_longest(seen.splitlines(), expected.splitlines(), fillvalue="(nothing)"))
    differing = [pair for pair in pairs if pair[0] != pair[1]]
    for mine, right in differing[:SHOWN_LINES]:
        out.pair("sees", mine, "red", 4)
        out.pair("should see", right, "green", 4)
    if len(differing) > SHOWN_LINES:
        out.line(f"and {len(differing) - SHOWN_LINES} more lines differ", "dim", 4)
    out.line()


def show_failed(
    out: Screen, hunt: Hunt, result: public.PhaseResult, failed: list[public.Test]
) -> None:
    out.line(f"✗ hidden tests: {len(failed)} of {len(result.tests)} fail", "red")
    titles = [*dict.fromkeys(test.title for test in failed)]  # one may have several cases
    for title in titles[:SHOWN_LINES] or ["the module cannot be imported"]:
        out.line(title, indent=4)
    if len(titles) > SHOWN_LINES:
        out.line(f"and {len(titles) - SHOWN_LINES} more", "dim", 4)
    if result.broken or not failed:
        out.line(f"next: edit {hunt.shown(hunt.file)}, then make hunt-{hunt.id}", "bold")
        return
    out.line("The script's output is right now, and these tests fail: the mend does too little,"
             " too much, or more work than it needs. The function's docstring says what is"
             " asked.")  # fmt: skip
    if record_of(hunt).get("own"):
        out.line(f"The rest of the file is your own code: make grade-{hunt.phase.number} tells"
                 " whether these tests failed before.")  # fmt: skip
    out.line(f"next: edit {hunt.shown(hunt.file)}, then make hunt-{hunt.id}", "bold")


def show_story(out: Screen, hunt: Hunt) -> None:
    out.line(f"It was {hunt.mistake.function}, task {hunt.exercise.id}.", "bold")
    out.line(hunt.story)
    if row := hunts.row_text(hunt):
        out.line(f"{hunt.row} of upstream_notes/HISTORY.md: {row}", "dim")
