"""What a learner has changed about a function without meaning to."""

from __future__ import annotations

import ast

import pytest

from labkit.judge import declared

GIVEN = "def parts(n):\n    yield 1\n"


@pytest.mark.parametrize(
    ("mine", "line"),
    [
        ("def parts(n):\n    if n:\n        return n\n    yield 1\n", 3),
        ("def parts(n):\n    if n:\n        yield n\n        return\n    yield 1\n", 0),
        ("def parts(n):\n    def inner():\n        return 1\n    yield inner()\n", 0),
        ("def parts(n):\n    return [n]\n", 0),  # a list is iterated over as well
    ],
    ids=["a value is lost", "it only ends", "of a function inside", "no generator"],
)
def test_a_value_that_a_generator_returns_is_reported(mine: str, line: int) -> None:
    """Python does not: a loop over the generator gets fewer values, or none."""
    nodes = [ast.parse(text).body[0] for text in (mine, GIVEN)]
    said = list(declared._differences("parts", *nodes))  # type: ignore[arg-type]
    assert [f"line {line} " in sentence for sentence in said] == ([True] if line else [])


@pytest.mark.parametrize(("promised", "wrong"), [("list[int]", True), ("Iterator[int]", False)])
def test_a_function_that_returns_an_iterator_may_be_a_generator(promised: str, wrong: bool) -> None:
    texts = (f"def each(n) -> {promised}:\n    {line}\n" for line in ("yield n", "return f(n)"))
    nodes = [ast.parse(text).body[0] for text in texts]
    said = list(declared._differences("each", *nodes))  # type: ignore[arg-type]
    assert [sentence for sentence in said if "has a `yield`" in sentence] == said
    assert bool(said) == wrong
