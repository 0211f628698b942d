"""`make interview-03`: an oral examination for one, with the questions of `labkit viva`.

You answer aloud or on paper, and the clock runs until Enter. Then you tick what your answer did,
and read the key points of a good one. Nothing judges you but yourself, so the criteria are such as
can be answered by yes or no.
"""

from __future__ import annotations

import re
import secrets
import sys
import textwrap
import time
from collections.abc import Callable, Sequence

import typer

from labkit.course.console import Screen, course, polite, ready_phase
from labkit.course.state import State
from labkit.practice import viva
from labkit.practice.mastery import INTERVIEWS

WIDTH = 78
GOOD_SECONDS = {"predict": 120, "explain": 180, "hunt": 240, "change": 300}
"""An answer that takes longer is probably not in your head yet."""
CRITERIA: dict[str, tuple[str, ...]] = {
    "predict": (
        "I said a result before I looked.",
        "I said which rule gives it.",
    ),
    "explain": (
        "I said what goes wrong, in one sentence.",
        "I said for which requests it goes wrong, and for which it does not.",
        "I named an input that shows it.",
    ),
    "hunt": (
        "I said where to look first, and why there.",
        "I said what I would measure or print.",
        "I named the rule that is broken.",
    ),
    "change": (
        "I said which function changes, and how.",
        "I said what stays as it is.",
        "I said what it costs, and for whom.",
    ),
}


@polite
def main(
    phase: str = typer.Argument(help="a phase: 3, 03 or 03-scheduler"),
    seed: int | None = typer.Option(None, "--seed", help="ask these questions again"),
) -> None:
    """An interview for one: fresh questions, a clock, criteria that you tick, key points."""
    chosen = ready_phase(phase)
    number = secrets.randbelow(10**6) if seed is None else seed
    asked = list(viva.questions(chosen, number))
    out = Screen()
    out.line(f"interview-{chosen.number} · {chosen.title} · {len(asked)} questions", "bold")
    out.line("Answer aloud, or write. Enter stops the clock; q ends the interview.", "dim")
    out.line(
        f'The same questions again: make interview-{chosen.number} ARGS="--seed {number}"', "dim"
    )
    ticked, of, seconds = hold(out, asked)
    if of:
        State(course().root).put(
            INTERVIEWS,
            chosen.number,
            {"seed": number, "ticked": [ticked, of], "seconds": round(seconds)},
        )
        out.line()
        out.line(f"{ticked} of {of} ticked, in {clock(seconds)}.", "bold")
        out.line(f"Without --seed, make interview-{chosen.number} asks other questions.")


def hold(
    out: Screen, asked: Sequence[viva.Asked], now: Callable[[], float] = time.monotonic
) -> tuple[int, int, float]:
    """Ask one question after the other: criteria ticked, of how many, and the seconds of all
    answers. `q` or the end of input ends it; an answer that was not judged does not count."""
    ticked = of = 0
    seconds = 0.0
    for number, question in enumerate(asked, 1):
        out.line()
        good = GOOD_SECONDS[question.kind]
        out.line(f"Question {number} of {len(asked)} · about {clock(good)}", "bold")
        out.line(shown(question.text))
        began = now()
        if ask(out, "Enter when you have answered > ") is None:
            break
        took = now() - began
        late = f", longer than {clock(good)}" if took > good else ""
        out.line(f"You took {clock(took)}{late}.", "dim", 2)
        marks = tick(out, CRITERIA[question.kind])
        if marks is None:
            break
        ticked, of, seconds = ticked + len(marks), of + len(CRITERIA[question.kind]), seconds + took
        out.line("Key points of a good answer:", "", 2)
        for point in points(question.answer):
            out.line(textwrap.fill(point, WIDTH, initial_indent="  - ", subsequent_indent="    "))
        if question.read and len(marks) < len(CRITERIA[question.kind]):
            out.line(f"Read again: {question.read}", "dim", 2)
    return ticked, of, seconds


def ask(out: Screen, prompt: str) -> str | None:
    """A line that is typed; None for `q` and for the end of input."""
    out.console.print(prompt, end="", markup=False)
    said = sys.stdin.readline()
    return None if not said or said.strip().lower() == "q" else said.strip()


def tick(out: Screen, criteria: Sequence[str]) -> set[int] | None:
    """Which criteria the answer meets, by their numbers; None ends the interview."""
    for index, text in enumerate(criteria, 1):
        out.line(f"{index} {text}", indent=4)
    while True:
        said = ask(out, "  Which are true? Numbers, such as 1 3; Enter: none > ")
        if said is None:
            return None
        words = said.replace(",", " ").split()
        if all(word.isdigit() and 1 <= int(word) <= len(criteria) for word in words):
            return {int(word) for word in words}
        out.line(
            f"{said!r} is no list of numbers from 1 to {len(criteria)}, such as 1 2", "yellow", 2
        )


def points(answer: str) -> list[str]:
    """A good answer, sentence by sentence."""
    return [part for part in re.split(r"(?<=[.?!:]) +(?=[A-Z`\"“])", plain(answer)) if part]


def shown(text: str) -> str:
    """A question for a screen of 80 columns: paragraphs wrapped, code as it is."""
    parts = re.split(r"(?s)```\w*\n(.*?)\n?```", text)
    rows: list[str] = []
    for index, part in enumerate(parts):
        if index % 2:
            rows += [f"    {line}" for line in part.splitlines()] + [""]
            continue
        for paragraph in re.split(r"\n\s*\n", part.strip()):
            if paragraph.startswith("    "):
                rows += [*paragraph.splitlines(), ""]
            elif paragraph:
                rows += [*textwrap.wrap(plain(" ".join(paragraph.split())), WIDTH), ""]
    return "\n".join(rows).rstrip()


def plain(text: str) -> str:
    """Without the marks of Markdown that a screen does not show."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("**", "")


def clock(seconds: float) -> str:
    """ "2:05"."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
