"""`make quiz-03`: predict what the engine does. `make review`: what is due again, a few minutes a
day.

Which kind of question comes back when is decided by FSRS, a well-kept scheduler of spaced
repetition; each time the numbers are fresh.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import typer

from labkit.course.console import Screen, course, polite, ready_phase
from labkit.course.manifest import ManifestError
from labkit.course.state import State
from labkit.practice.question import PHASES, Question, draw, kinds

TABLE = "quiz"
"""In `.labkit/state.json`: kind -> {"asked": n, "right": n, "skipped": n, "card": FSRS's JSON}.
What was skipped is not among those asked."""
TRIES = 50
"""Draws until a question of a kind is one that this round has not asked yet."""
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
    counts = dict.fromkeys(("right", "wrong", "skipped"), 0)
    for number, (kind, question) in enumerate(drawn(names, first), 1):
        out.line()
        out.line(f"{number}/{len(names)}  {question.text}")
        for index, choice in enumerate(question.choices, 1):
            out.line(f"{index} {choice}", indent=6)
        said = answer(out, question)
        if not said:
            break
        counts[said] += 1
        remember(kind, said)
    if sum(counts.values()):
        out.line()
        skips = f", {counts['skipped']} skipped" * bool(counts["skipped"])
        asked = counts["right"] + counts["wrong"]
        told = f"{counts['right']} of {asked} right{skips}. make review brings the others back."
        out.line(told, "bold")


def drawn(names: Sequence[str], seed: int) -> Iterator[tuple[str, Question]]:
    """A question of each kind; none twice, neither in a round nor, but for chance, in that of
    another seed."""
    texts = set[str]()
    for number, kind in enumerate(names):
        draws = (draw(kind, f"{seed}/{number}/{n}") for n in range(TRIES))
        question = next((q for q in draws if q.text not in texts), None)
        question = question or draw(kind, f"{seed}/{number}")
        texts.add(question.text)
        yield kind, question


def answer(out: Screen, question: Question) -> str:
    """Read answers until one can be judged: "right", "wrong" or "skipped"; "" if the learner has
    had enough."""
    while True:
        out.console.print("> ", end="")
        said = sys.stdin.readline()
        if not said or said.strip() == "q":
            return ""
        if not said.strip():
            out.line(f"… it is {shown(question)}. {question.why}", "yellow", 2)
            return "skipped"
        try:
            good = question.accepts(said)
        except ValueError as error:
            out.line(str(error), "yellow", 2)
            continue
        if good:
            out.line("✓ right", "green", 2)
        else:
            out.line(f"✗ it is {shown(question)}. {question.why}", "red", 2)
        return "right" if good else "wrong"


def shown(question: Question) -> str:
    right = question.engine()
    return f"{right:.4g}" if isinstance(right, float) else str(right)


def remember(kind: str, said: str) -> None:
    """Count the answer, "right", "wrong" or "skipped", and let FSRS say when this kind comes back:
    a skipped one as soon as a wrong one."""
    from fsrs import Card, Rating, Scheduler

    state = State(course().root)
    record = {"asked": 0, "right": 0, "skipped": 0} | (state.get(TABLE, kind) or {})
    card = Card.from_json(record["card"]) if "card" in record else Card()
    card, _ = Scheduler().review_card(card, Rating.Good if said == "right" else Rating.Again)
    record |= {
        "asked": record["asked"] + (said != "skipped"),
        "right": record["right"] + (said == "right"),
        "skipped": record["skipped"] + (said == "skipped"),
        "card": card.to_json(),
    }
    state.put(TABLE, kind, record)
