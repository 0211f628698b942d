"""What the arena's commands are told: words, numbers, and what is said when they are wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

import typer


@contextmanager
def polite() -> Iterator[None]:
    """A wrong argument is one line on stderr and exit code 2."""
    try:
        yield
    except ValueError as error:
        print(f"labkit arena: {error}", file=sys.stderr)
        raise typer.Exit(2) from None


def words_of(text: str, known: Iterable[str]) -> list[str]:
    """A comma-separated list of names, all of them if there is none; each must be known."""
    names = list(known)
    chosen = [word.strip() for word in text.split(",") if word.strip()] or names
    for word in chosen:
        if word not in names:
            near = get_close_matches(word, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
            raise ValueError(f"there is no {word!r}; {hint}")
    return chosen


def whole_number(word: str) -> int:
    """The number that a word is."""
    try:
        return int(word)
    except ValueError:
        raise ValueError(f"the seed {word!r} is no whole number") from None
