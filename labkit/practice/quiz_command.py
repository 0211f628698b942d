"""`make quiz-03`: predict what the engine does. `make review`: what is due again, a few minutes a
day.

Which kind of question comes back when is decided by FSRS, a well-kept scheduler of spaced
repetition; each time the numbers are fresh.
"""

from __future__ import annotations

import secrets
import sys
from datetime import UTC, datetime
from typing import Any

import typer

from labkit.course.console import Screen, course, polite, ready_phase
from labkit.course.manifest import ManifestError
from labkit.course.state import State
from labkit.practice.question import PHASES, Question, draw, kinds

TABLE = "quiz"
"""In `.labkit/state.json`: kind -> {"asked": n, "right": n, "card": FSRS's JSON}."""
COUNT = typer.Option(5, "--count", min=1, max=50, help="how many questions")
SEED = typer.Option(None, "--seed", help="draw these questions again; default: fresh ones")


@polite
def quiz(
    phase: str = typer.Argument(help="a phase: 3, 03 or 03-scheduler"),
    count: int = COUNT,
    seed: int | None = SEED,
) -> None:
    """Predict states and costs: fresh questions, answered by the engine itself."""
    chosen = ready_phase(phase)
    names = [f"{chosen.number}/{name}" for name in kinds(chosen.number)]
    if not names:
        have = ", ".join(number for number in PHASES if kinds(number))
        raise ManifestError(f"phase {chosen.number} has no questions; {have} have")
    out = Screen()
    out.line(f"quiz-{chosen.number} · {chosen.title}", "bold")
    ask_all(out, [names[i % len(names)] for i in range(count)], seed)


@polite
def review(count: int = COUNT, seed: int | None = SEED) -> None:
    """Questions of all phases that are due again; wrong ones come soon, right ones later."""
    out, records = Screen(), State(course().root).data.get(TABLE, {})
    now = datetime.now(UTC).isoformat()
    due = sorted((due_at(record), kind) for kind, record in records.items())
    ripe = [kind for when, kind in due if when <= now]
    if not records:
        out.line("Nothing to review yet: make quiz-02 asks the first questions.")
        return
    if not ripe:
        out.line(f"Nothing is due. The next question, {due[0][1]}, is due on {due[0][0][:16]} UTC.")
        return
    out.line(f"review · {len(ripe)} due", "bold")
    ask_all(out, ripe[:count], seed)


def due_at(record: dict[str, Any]) -> str:
    from fsrs import Card

    return Card.from_json(record["card"]).due.isoformat()


def ask_all(out: Screen, names: list[str], seed: int | None) -> None:
    """Ask one question of each kind, and remember how it went; `q` or the end of input ends."""
    first = secrets.randbelow(10**9) if seed is None else seed
    out.line("Answer with a number or a choice; Enter skips, q ends.", "dim")
    right = asked = 0
    for number, kind in enumerate(names, 1):
        question = draw(kind, first + number)
        out.line()
        out.line(f"{number}/{len(names)}  {question.text}")
        for index, choice in enumerate(question.choices, 1):
            out.line(f"{index} {choice}", indent=6)
        good = answer(out, question)
        if good is None:
            break
        asked, right = asked + 1, right + good
        remember(kind, good)
    if asked:
        out.line()
        out.line(f"{right} of {asked} right. make review brings the others back.", "bold")


def answer(out: Screen, question: Question) -> bool | None:
    """Read answers until one can be judged; None if the learner has had enough."""
    while True:
        out.console.print("> ", end="")
        said = sys.stdin.readline()
        if not said or said.strip() == "q":
            return None
        if not said.strip():
            out.line(f"… it is {shown(question)}. {question.why}", "yellow", 2)
            return False
        try:
            good = question.accepts(said)
        except ValueError as error:
            out.line(str(error), "yellow", 2)
            continue
        if good:
            out.line("✓ right", "green", 2)
        else:
            out.line(f"✗ it is {shown(question)}. {question.why}", "red", 2)
        return good


def shown(question: Question) -> str:
    right = question.engine()
    return f"{right:.4g}" if isinstance(right, float) else str(right)


def remember(kind: str, good: bool) -> None:
    """Count the answer, and let FSRS say when this kind comes back."""
    from fsrs import Card, Rating, Scheduler

    state = State(course().root)
    record = dict(state.get(TABLE, kind) or {"asked": 0, "right": 0})
    card = Card.from_json(record["card"]) if "card" in record else Card()
    card, _ = Scheduler().review_card(card, Rating.Good if good else Rating.Again)
    record |= {
        "asked": record["asked"] + 1,
        "right": record["right"] + good,
        "card": card.to_json(),
    }
    state.put(TABLE, kind, record)
