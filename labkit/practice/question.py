"""What a question is: drawn from a seed, and its answer computed twice.

A kind of question is a function of a random generator that returns a `Question`. `engine` computes
the answer with the engine itself; `by_hand` computes it again, by other means: a test compares the
two over many seeds. Since numbers are fresh each time, an answer cannot be copied.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

Answer = int | float | str
PHASES = tuple(
    sorted(path.stem[1:] for path in Path(__file__).with_name("questions").glob("p*.py"))
)
"""Those that have questions."""


@dataclass(frozen=True)
class Question:
    """One question.

    Attributes:
        text: what is asked, with all numbers that the answer needs.
        engine: the answer, from the engine.
        by_hand: the answer once more, without the engine.
        why: how one gets there, with the numbers of this question.
        choices: what may be answered, if it is no number.
        tolerance: how far off a number may be, as a share of it; 0: exactly right.
    """

    text: str
    engine: Callable[[], Answer]
    by_hand: Callable[[], Answer]
    why: str
    choices: tuple[str, ...] = ()
    tolerance: float = 0.0

    def accepts(self, said: str) -> bool:
        """Whether what was typed is right.

        Raises:
            ValueError: it is no answer at all; the message says what would be one.
        """
        right, said = self.engine(), said.strip()
        if self.choices:
            if said.isdigit() and 1 <= int(said) <= len(self.choices):
                said = self.choices[int(said) - 1]
            if said not in self.choices:
                shown = ", ".join(f"{i} {c}" for i, c in enumerate(self.choices, 1))
                raise ValueError(f"{said!r} is none of the choices: {shown}")
            return said == right
        if isinstance(right, str):
            return _bare(said) == _bare(right)
        try:
            number = float(said.rstrip("%"))
        except ValueError:
            raise ValueError(f"{said!r} is no number; answer with one, such as 12") from None
        return abs(number - right) <= self.tolerance * abs(right) + 1e-9


def _bare(text: str) -> str:
    """Without what only separates: "(1, 3)", "1,3" and "1 and 3" are "1 3"."""
    return " ".join(re.sub(r"[][(),;]|\band\b", " ", text).split())


def counted(number: int, noun: str) -> str:
    """ "1 token", "12 tokens" """
    return f"{number} {noun}" + "s" * (number != 1)


Maker = Callable[[Random], Question]


def kinds(phase: str) -> dict[str, Maker]:
    """The kinds of questions of a phase, "03" -> {"tokens-of-a-step": …}; {} if it has none."""
    name = f"labkit.practice.questions.p{phase}"
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return {}
    return dict(module.KINDS)


def draw(kind: str, seed: int | str) -> Question:
    """The question of a kind ("03/tokens-of-a-step") that a seed gives, the same every time.

    Raises:
        ValueError: there is no such kind.
    """
    phase, _, name = kind.partition("/")
    makers = kinds(phase)
    if name not in makers:
        raise ValueError(f"there is no question {kind!r}; phase {phase} has {', '.join(makers)}")
    return makers[name](Random(f"{kind}/{seed}"))
