"""`make progress`: everything done so far."""

from __future__ import annotations

from labkit.course import finish
from labkit.course.console import Screen, command, course, polite, some
from labkit.course.manifest import Course, Phase
from labkit.course.state import State
from labkit.practice.mastery import INTERVIEWS, mastery


@polite
def progress() -> None:
    """Every phase: built (points, notebook, hints), debugged, changed, predicted."""
    known = course()
    state = State(known.root)
    if state.refused:
        raise state.refused
    show(known, state, Screen())


def show(known: Course, state: State, out: Screen) -> None:
    """A line for each phase, and what they come to."""
    earned, total, done = 0, 0, set[str]()
    for phase in known.phases:
        if not phase.ready:
            out.line(f"  {phase.number} {phase.title:32} not built yet", "dim")
            continue
        passed, record = state.standing(phase), state.get("phases", phase.slug) or {}
        points = sum(e.points for e in phase.exercises)
        mine = sum(e.points for e in phase.exercises if e.id in passed)
        earned, total = earned + mine, total + points
        bar = "█" * round(10 * mine / points) + "░" * (10 - round(10 * mine / points))
        answers, questions = record.get("notebook", ["-", "-"])
        hints = sum(
            state.get("hints", e.id, 0) + len((state.get("test_hints", e.id) or {}).get("seen", []))
            for e in phase.exercises
        )
        green = bool(record.get("green")) and len(passed) == len(phase.exercises)
        done |= {phase.number} if len(passed) == len(phase.exercises) else set()
        mark = "✓" if green else " "
        practised = mastery(phase, state).words()
        said = (hidden(phase, state), practised, interviewed(phase, state))
        more = "".join(f" · {words}" for words in said if words)
        out.line(
            f"{mark} {phase.number} {phase.title:32} {bar} {mine:3}/{points:3} points"
            f" · {public(phase, state)} · notebook {answers}/{questions} · hints {hints}{more}",
            "green" if green else "",
        )
    lines = " · ".join(line.words(known, done) for line in finish.LINES)
    out.line(f"finish lines, in phases: {lines}")
    out.line(f"{earned} of {total} points in public tests; hidden suites: make grade-NN")


def public(phase: Phase, state: State) -> str:
    """The count of the last run of the public tests; or, where it is of other files than these,
    what has to be judged again: it must not stand beside points that it does not explain."""
    edited = state.edited(phase)
    if edited:
        return f"edited since it passed: {some(edited)}; {command(phase, 'lab')} judges it"
    done, tests = (state.get("phases", phase.slug) or {}).get("public", ["-", "-"])
    return f"public {done}/{tests}"


def interviewed(phase: Phase, state: State) -> str:
    """How many criteria the last interview has ticked; "" before the first."""
    ticked, of = (state.get(INTERVIEWS, phase.number) or {}).get("ticked", (0, 0))
    return f"interview {ticked}/{of}" if of else ""


def hidden(phase: Phase, state: State) -> str:
    """The last grade's points; "" before the first."""
    grade = state.get("grades", phase.slug) or {}
    if "points" not in grade:
        return ""
    earned, points = grade["points"]
    since = "" if state.is_graded(phase) else f" before an edit ({command(phase, 'grade')})"
    return f"hidden {earned:g}/{points:g}{since}"
