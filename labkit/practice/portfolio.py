"""`make portfolio`: one page about the learner's engine, for whoever she wants to show it to.

No name stands on it, and nothing is sent anywhere: it is a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from labkit.course import source
from labkit.course.console import Screen, course, polite
from labkit.course.files import write_text
from labkit.course.manifest import Course, Phase
from labkit.course.state import State
from labkit.inside import child
from labkit.practice import hunts
from labkit.practice.mastery import mastery
from labkit.process.worker import Worker, WorkerError
from labkit.reader.templates import ASSETS, render

RUN_SECONDS = 120.0
MEASURE = "labkit.practice.scenes:measure"
Row = tuple[str, str, str]


@polite
def main(
    out: Path = typer.Option(Path("reports/portfolio.html"), "--out", help="the page"),
    measure: bool = typer.Option(True, help="run your modules beside the reference: a minute"),
) -> None:
    """Write one page of your engine: what you wrote, how fast it is, which bugs you found."""
    known = course()
    path = out if out.is_absolute() else known.root / out
    write_text(path, page(known, compare(known) if measure else []))
    Screen().line(f"wrote {out}")


def page(known: Course, runs: Sequence[Row]) -> str:
    """The page, as HTML that needs no other file."""
    state = State(known.root)
    rows = [(phase, mastery(phase, state)) for phase in known.ready]
    functions = [(phase, written(phase, state)) for phase in known.ready]
    functions = [(phase, names) for phase, names in functions if names]
    solved = [
        hunt
        for phase in known.ready
        for hunt in hunts.load(phase)
        if "solved" in (state.get("hunts", hunt.id) or {})
    ]
    return render(
        "portfolio.html",
        style=(ASSETS / "reader.css").read_text(encoding="utf-8"),
        script="",
        phases=rows,
        points=sum(row.built[0] for _, row in rows),
        total=sum(row.built[1] for _, row in rows),
        written=sum(len(names) for _, names in functions),
        known=sum(len(task.functions) for phase in known.ready for task in phase.exercises),
        runs=runs,
        about="One small run on this machine, on one core; it shows where time goes and is no"
        " benchmark.",
        solved=solved,
        functions=functions,
    )


def written(phase: Phase, state: State) -> list[tuple[str, int]]:
    """The functions of the tasks that passed, with the lines of the learner's own."""
    passed, found = state.passed(phase.slug), []
    for task in phase.exercises:
        mine = phase.lab_file(task.module)
        if task.id not in passed or not mine.exists():
            continue
        text = mine.read_text(encoding="utf-8")
        for name in task.functions:
            try:
                lines = source.function_text(text, source.find(text, name)).splitlines()
            except (SyntaxError, source.SourceError):
                continue
            found.append((name, len(lines)))
    return found


def compare(known: Course) -> list[Row]:
    """The engine with every module whose tasks passed, beside the reference; [] if there is none,
    or if the learner's does not finish."""
    state = State(known.root)
    mapping = {
        module: str(phase.lab_file(module))
        for phase in known.ready
        for module in phase.modules
        if phase.lab_file(module).exists()
        and all(task.id in state.passed(phase.slug) for task in phase.of_module(module))
    }
    if not mapping:
        return []
    limits = child.Limits(RUN_SECONDS, 0)
    mine = Worker(known.root, mapping, limits, "mine")
    theirs = Worker(known.root, {}, limits, "reference")
    try:
        with mine, theirs:
            left, right = mine.call(MEASURE), theirs.call(MEASURE)
    except WorkerError as error:
        return [("did not finish", str(error)[:200], "")]
    return [(title, left[title], right[title]) for title in left]
