"""What a failing function was given, as the screen shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from labkit.judge.given import case_of, given


class Loud:
    """An object whose own code must not run for a screen."""

    def __repr__(self) -> str:
        raise AssertionError("asked")


@dataclass
class Shelf:
    rows: int

    def take(self, count: int) -> int:
        return self.rows // count


def divides(first: Any, second: Any = 0, *, names: Any = ()) -> float:
    return float(next(first / second for _ in range(1)))


def counts_down(left: int, right: int) -> float:
    left -= 1
    return left / right


def passes_on(numbers: Any) -> float:
    return divides(1, 0, names=numbers)


def said(call: Callable[[], object], files: tuple[str, ...] = (__file__,)) -> str:
    """What is told of an error; a test's own frames are no learner's."""
    try:
        call()
    except Exception as error:
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
        while error.__traceback__ and error.__traceback__.tb_frame.f_code.co_name == "<lambda>":
            error.__traceback__ = error.__traceback__.tb_next
        return given(error, files)
    raise AssertionError("it raised nothing")


@pytest.mark.parametrize(
    ("call", "right"),
    [
        (lambda: divides(1, 0), "divides(first=1, second=0, names=())"),
        (lambda: divides("a", 0), "divides(first='a', second=0, names=())"),
        (lambda: divides(1, names={"b": [1]}), "divides(first=1, second=0, names={'b': [1]})"),
        (lambda: Shelf(3).take(0), "Shelf.take(count=0)"),
        (lambda: counts_down(3, 0), "counts_down(left=..., right=0)"),
        (lambda: passes_on([2]), "passes_on(numbers=[2])"),
        (lambda: passes_on([Loud(), np.zeros(2)]), "passes_on(numbers=[a Loud, ndarray[2]])"),
        (lambda: passes_on((torch.zeros(0, 4),)), "passes_on(numbers=(Tensor[0, 4]))"),
        (lambda: passes_on([Loud()] * 9), "passes_on(numbers=list of 9)"),
    ],
)  # fmt: skip
def test_the_call_is_told_with_what_it_was_given(call: Callable[[], object], right: str) -> None:
    """The outermost call; of an object its kind; a name that was bound anew is left out."""
    assert said(call) == right


def test_nothing_is_told_of_other_files() -> None:
    assert said(lambda: divides(1, 0), ("other.py",)) == ""


def test_a_long_value_is_cut() -> None:
    assert len(said(lambda: passes_on(list(range(500))))) < 300
    assert len(said(lambda: divides("a" * 500))) < 300


def test_a_case_is_told_by_its_plain_values() -> None:
    """A fixture's object is none of the test's own words."""
    assert case_of({"prompt": [1, 9], "lab": Loud(), "lengths": []}) == "prompt=[1, 9], lengths=[]"
    assert case_of({}) == ""
