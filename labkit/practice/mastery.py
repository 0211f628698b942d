"""How far a learner has come in a phase: built, debugged, changed, predicted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from labkit.course.manifest import Phase
from labkit.course.state import State
from labkit.practice import counted

INTERVIEWS = "interviews"
"""In `.labkit/state.json`: phase -> {"seed": n, "ticked": [so many, of so many], "seconds": n}."""
Share = tuple[int, int]
"""So many of so many."""


@dataclass(frozen=True)
class Mastery:
    """What one phase counts.

    Attributes:
        built: points earned in public tests. debugged: hunts solved. changed: change requests
            done. predicted: questions answered right, of those asked; the notebook's predictions
            count too.
    """

    built: Share
    debugged: Share
    changed: Share
    predicted: Share

    def words(self) -> str:
        """ "debugged 1/3 · predicted 7/9"; what the phase does not have is left out."""
        named = {"debugged": self.debugged, "changed": self.changed, "predicted": self.predicted}
        return " · ".join(f"{name} {a}/{b}" for name, (a, b) in named.items() if b)


def mastery(phase: Phase, state: State) -> Mastery:
    """What the course remembers of a phase."""
    passed = state.standing(phase)
    hunted, changed = counted.hunts(phase), counted.changes(phase)
    records: list[dict[str, Any]] = [
        record
        for kind, record in state.data.get("quiz", {}).items()
        if kind.startswith(f"{phase.number}/")
    ]
    guesses = [
        guess
        for name, guess in state.data.get("predictions", {}).items()
        if name.startswith(f"P{phase.number}")
    ]
    right = sum(record["right"] for record in records) + sum(map(is_close, guesses))
    asked = sum(record["asked"] for record in records) + len(guesses)
    return Mastery(
        (sum(e.points for e in phase.exercises if e.id in passed),
         sum(e.points for e in phase.exercises)),
        (sum("solved" in (state.get("hunts", name) or {}) for name in hunted), len(hunted)),
        (sum("solved" in (state.get("changes", name) or {}) for name in changed), len(changed)),
        (right, asked),
    )  # fmt: skip


def is_close(guess: dict[str, Any]) -> bool:
    """Whether a prediction in a notebook was within a fifth of what came out."""
    try:
        said, came = float(guess["guess"]), float(guess["actual"])
    except (KeyError, TypeError, ValueError):
        return guess.get("guess") is not None and guess.get("guess") == guess.get("actual")
    return abs(said - came) <= 0.2 * abs(came)
