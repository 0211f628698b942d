"""What the portfolio tells of a learner's state and files, as one page of HTML.

`make portfolio` adds what it has measured (`labkit.practice.portfolio`); the book's pages make it
in a browser's tab, which measures nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from labkit.course import finish, source
from labkit.course.files import read_python
from labkit.course.manifest import Course, Phase
from labkit.course.state import State
from labkit.practice.mastery import mastery
from labkit.reader.templates import ASSETS, render

Row = tuple[str, str, str]


def page(
    known: Course,
    state: State,
    *,
    runs: Sequence[Row] = (),
    others: Sequence[tuple[str, str]] = (),
    inspector: str = "",
    arena: Sequence[Row] = (),
    solved: Sequence[tuple[str, str]] = (),
) -> str:
    """The page, as HTML that needs no other file.

    Args:
        runs: a title, the learner's value, the reference's.
        others: other engines on the same prompts, and their tokens a second.
        inspector: a run with the learner's modules, as a page of its own.
        arena: a contest, the learner's value, and that of the engine it was measured against.
        solved: title and story of each hunt that ended with a mended bug.
    """
    rows = [(phase, mastery(phase, state), judged(phase, state)) for phase in known.ready]
    functions = [(phase, written(phase, state)) for phase in known.ready]
    functions = [(phase, names) for phase, names in functions if names]
    done = {phase.number for phase, row, _ in rows if row.built[0] == row.built[1]}
    return render(
        "portfolio.html",
        finished=[line for line in finish.LINES if line.name in finish.reached(known, done)],
        style=(ASSETS / "reader.css").read_text(encoding="utf-8"),
        script="",
        phases=rows,
        points=sum(row.built[0] for _, row, _ in rows),
        total=sum(row.built[1] for _, row, _ in rows),
        written=sum(len(names) for _, names in functions),
        known=sum(len(task.functions) for phase in known.ready for task in phase.exercises),
        runs=runs,
        others=others,
        inspector=inspector,
        arena=arena,
        modules=[(phase, modules(phase, state)) for phase in known.ready],
        about="One small run on this machine, on one core; it shows where time goes and is no"
        " benchmark.",
        solved=solved,
        mended=mended(state),
        functions=functions,
    )


def judged(phase: Phase, state: State) -> str:
    """The day on which the phase was last judged, "2026-11-30"; "" where it was not."""
    when = str((state.get("phases", phase.slug) or {}).get("when"))
    try:
        return datetime.fromisoformat(when).date().isoformat()
    except ValueError:
        return ""


def mended(state: State) -> list[str]:
    """The pull request's text of each bug of the real vLLM that was mended (`make maintain`)."""
    rows = state.data.get("maintain", {})
    return [row["text"] for _, row in sorted(rows.items()) if row.get("text")]


def written(phase: Phase, state: State) -> list[tuple[str, int]]:
    """The functions of the tasks that passed, with the lines of the learner's own."""
    passed, found = state.standing(phase), []
    for task in phase.exercises:
        mine = phase.lab_file(task.module)
        if task.id not in passed or not mine.exists():
            continue
        for name in task.functions:
            try:
                text = read_python(mine)
                lines = source.function_text(text, source.find(text, name)).splitlines()
            except (SyntaxError, source.SourceError):
                continue
            found.append((name, len(lines)))
    return found


def modules(phase: Phase, state: State) -> list[tuple[str, int, int]]:
    """The phase's modules: how many of their tasks passed, of how many."""
    passed = state.standing(phase)
    found = []
    for module in phase.modules:
        tasks = list(phase.of_module(module))
        done = sum(task.id in passed for task in tasks)
        found.append((module, done if phase.lab_file(module).exists() else 0, len(tasks)))
    return found
