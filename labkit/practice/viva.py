"""`python -m labkit viva 03`: a sheet for an oral examination, drawn from a seed.

Nothing on it is written twice: states come from the quiz, wrong bodies from the named mistakes,
symptoms from the hunts, designs from the change requests. Each has what a good answer holds.
"""

from __future__ import annotations

import difflib
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import typer

from labkit.course import source
from labkit.course.console import polite, ready_phase
from labkit.course.manifest import Phase
from labkit.judge import mistakes
from labkit.practice import changes, hunts
from labkit.practice.question import draw, kinds
from labkit.practice.quiz import shown


@dataclass(frozen=True)
class Asked:
    """One question: "predict", "explain", "hunt" or "change", what a good answer holds, and where
    its rule stands."""

    kind: str
    text: str
    answer: str
    read: str = ""


@polite
def main(
    phase: str = typer.Argument(help="a phase: 3, 03 or 03-scheduler"),
    seed: int | None = typer.Option(None, "--seed", help="print this sheet again"),
    bare: bool = typer.Option(False, "--no-answers", help="without what a good answer holds"),
) -> None:
    """Questions for an oral examination, with what a good answer holds, as Markdown."""
    number = secrets.randbelow(10**6) if seed is None else seed
    print(sheet(ready_phase(phase), number, not bare))


def sheet(phase: Phase, seed: int, answers: bool = True) -> str:
    """Five or six questions of a phase; the same seed gives the same ones."""
    lines = [f"# Viva: {phase.number} {phase.title}", "", f"Sheet {seed}: `labkit viva"
             f" {phase.number} --seed {seed}`."]  # fmt: skip
    for number, asked in enumerate(questions(phase, seed), 1):
        lines += ["", f"## {number}", "", asked.text]
        if answers:
            lines += ["", f"*A good answer:* {asked.answer}"]
    return "\n".join(lines)


def questions(phase: Phase, seed: int) -> Iterator[Asked]:
    """Two states to predict, two wrong bodies, a user's report, a change; less where the phase has
    none of a kind."""
    rng = Random(seed)
    names = list(kinds(phase.number))
    for name in rng.sample(names, min(2, len(names))):
        question = draw(f"{phase.number}/{name}", seed)
        guide = f"phases/{phase.slug}/00-guide.md"
        yield Asked("predict", question.text, f"{shown(question)}. {question.why}", guide)
    known = mistakes.load(phase)
    for mistake in rng.sample(known, min(2, len(known))):
        place = _place(phase, mistake)
        yield Asked("explain", _of_mistake(phase, mistake), mistake.misconception, place)
    for hunt in rng.sample(hunts.load(phase), min(1, len(hunts.load(phase)))):
        told = " ".join(hunt.symptom.split())
        yield Asked(
            "hunt",
            f"A user writes: “{told}” Where do you look, and what do you measure?",
            f"{hunt.clues[0]} {hunt.clues[1]} It was {hunt.mistake.function}."
            f" {' '.join(hunt.story.split())}",
            _place(phase, hunt.mistake),
        )
    for change in rng.sample(changes.load(phase), min(1, len(changes.load(phase)))):
        yield Asked(
            "change",
            f"{change.request}\n\nWhat do you change, and what does it cost?",
            " ".join(changes.solution(change)["discussion"].split()),
        )


def _place(phase: Phase, mistake: mistakes.Mutant) -> str:
    """The chapter's section of the task in which a mistake was made."""
    return f"phases/{phase.slug}/{phase.exercise(mistake.exercise).read}"


def _of_mistake(phase: Phase, mistake: mistakes.Mutant) -> str:
    """The difference between a right body and the wrong one; the question is what comes of it."""
    right = phase.reference_file(mistake.module).read_text(encoding="utf-8")
    before, after = (
        source.function_text(text, source.find(text, mistake.function)).splitlines()
        for text in (right, mistake.text)
    )
    changed = list(difflib.unified_diff(before, after, n=2, lineterm=""))[3:]
    body = "\n".join(changed)
    return (
        f"`{mistake.function}` is changed like this. What goes wrong, for whom, and which test"
        f" would show it?\n\n```diff\n{body}\n```"
    )
