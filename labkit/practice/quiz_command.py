"""`make quiz-03`: predict what the engine does. `make review`: what is due again, a few minutes a
day. `labkit.practice.quiz` chooses the questions.
"""

from __future__ import annotations

import secrets
import sys

import typer

from labkit.course.console import Screen, course, polite, ready_phase
from labkit.course.manifest import ManifestError
from labkit.course.state import State
from labkit.practice import quiz as questions
from labkit.practice.question import PHASES, Question, draw, kinds

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
    out, state = Screen(), State(course().root)
    due, ripe = questions.due(state), questions.ripe(state)
    if not due:
        out.line("Nothing to review yet: make quiz-02 asks the first questions.")
        return
    if not ripe:
        out.line(f"Nothing is due. The next question, {due[0][1]}, is due on {due[0][0][:16]} UTC.")
        return
    out.line(f"review · {len(ripe)} due", "bold")
    ask_all(out, ripe[:count], seed)


def ask_all(out: Screen, names: list[str], seed: int | None) -> None:
    """Ask one question of each kind, and remember how it went; `q` or the end of input ends."""
    first = secrets.randbelow(10**9) if seed is None else seed
    out.line("Answer with a number or a choice; Enter skips, q ends.", "dim")
    counts = dict.fromkeys(("right", "wrong", "skipped"), 0)
    for number, (kind, drawn) in enumerate(questions.seeds(names, first), 1):
        question = draw(kind, drawn)
        out.line()
        out.line(f"{number}/{len(names)}  {question.text}")
        for index, choice in enumerate(question.choices, 1):
            out.line(f"{index} {choice}", indent=6)
        said = answer(out, question)
        if not said:
            break
        counts[said] += 1
        questions.remember(State(course().root), kind, said)
    if sum(counts.values()):
        out.line()
        skips = f", {counts['skipped']} skipped" * bool(counts["skipped"])
        asked = counts["right"] + counts["wrong"]
        told = f"{counts['right']} of {asked} right{skips}. make review brings the others back."
        out.line(told, "bold")


def answer(out: Screen, question: Question) -> str:
    """Read answers until one can be judged: "right", "wrong" or "skipped"; "" if the learner has
    had enough."""
    while True:
        out.console.print("> ", end="")
        said = sys.stdin.readline()
        if not said or said.strip() == "q":
            return ""
        if not said.strip():
            out.line(f"… it is {questions.shown(question)}. {question.why}", "yellow", 2)
            return "skipped"
        try:
            good = question.accepts(said)
        except ValueError as error:
            out.line(str(error), "yellow", 2)
            continue
        if good:
            out.line("✓ right", "green", 2)
        else:
            out.line(f"✗ it is {questions.shown(question)}. {question.why}", "red", 2)
        return "right" if good else "wrong"
