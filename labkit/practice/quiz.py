"""Which questions are asked, and what is remembered of the answers: for `make quiz-NN` and
`make review` in a terminal, and for the book's pages.

Which kind of question comes back when is decided by FSRS, a well-kept scheduler of spaced
repetition; each time the numbers are fresh.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from labkit.course.state import State
from labkit.practice.question import Question, draw

TABLE = "quiz"
"""In `.labkit/state.json`: kind -> {"asked": n, "right": n, "skipped": n, "card": FSRS's JSON}.
What was skipped is not among those asked."""
TRIES = 50
"""Draws until a question of a kind is one that this round has not asked yet."""


def due(state: State) -> list[tuple[str, str]]:
    """(when, kind) of each question that was asked before, the earliest first; times in UTC."""
    from fsrs import Card

    records = state.data.get(TABLE, {})
    return sorted((Card.from_json(r["card"]).due.isoformat(), kind) for kind, r in records.items())


def ripe(state: State) -> list[str]:
    """The kinds that are due now, the earliest first."""
    now = datetime.now(UTC).isoformat()
    return [kind for when, kind in due(state) if when <= now]


def is_record(found: Any) -> bool:
    """Whether something is what :func:`remember` writes."""
    from fsrs import Card

    counts = ("asked", "right", "skipped")
    if not isinstance(found, dict) or not all(isinstance(found.get(c), int) for c in counts):
        return False
    try:
        Card.from_json(found["card"])
    except (KeyError, TypeError, ValueError):
        return False
    return True


def seeds(names: Sequence[str], seed: int) -> Iterator[tuple[str, str]]:
    """For each kind the seed of its question; none comes twice, neither in a round nor, but for
    chance, in that of another seed."""
    texts = set[str]()
    for number, kind in enumerate(names):
        tried = [f"{seed}/{number}/{n}" for n in range(TRIES)]
        fresh = (one for one in tried if draw(kind, one).text not in texts)
        found = next(fresh, f"{seed}/{number}")
        texts.add(draw(kind, found).text)
        yield kind, found


def shown(question: Question) -> str:
    """The right answer, as a screen shows it."""
    right = question.engine()
    return f"{right:.4g}" if isinstance(right, float) else str(right)


def remember(state: State, kind: str, said: str) -> None:
    """Count the answer, "right", "wrong" or "skipped", and let FSRS say when this kind comes back:
    a skipped one as soon as a wrong one."""
    from fsrs import Card, Rating, Scheduler

    record: dict[str, Any] = {"asked": 0, "right": 0, "skipped": 0}
    record |= state.get(TABLE, kind) or {}
    card = Card.from_json(record["card"]) if "card" in record else Card()
    card, _ = Scheduler().review_card(card, Rating.Good if said == "right" else Rating.Again)
    record |= {
        "asked": record["asked"] + (said != "skipped"),
        "right": record["right"] + (said == "right"),
        "skipped": record["skipped"] + (said == "skipped"),
        "card": card.to_json(),
    }
    state.put(TABLE, kind, record)
