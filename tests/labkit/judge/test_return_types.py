"""The second run of a failed test, which looks for a value of a wrong type."""

from __future__ import annotations

import typing
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from labkit.judge import pytest_report, return_types


def gives_text() -> int:
    return "three"  # type: ignore[return-value]


def gives_number() -> int:
    return 3


WATCHED = {__file__: dict.fromkeys(("gives_text", "gives_number"), __name__)}


def test_it_ends_at_the_first_wrong_type() -> None:
    """The rest of the test would only cost its time once more."""
    seen: list[object] = []
    item = SimpleNamespace(runtest=lambda: seen.extend((gives_number(), gives_text(), 1)))
    found = return_types.wrong_return(item, WATCHED)
    assert found and (found["function"], found["type"]) == ("gives_text", "str")
    assert seen == []


def test_a_promise_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulation calls a function a hundred thousand times."""
    asked: list[object] = []
    real = typing.get_type_hints
    monkeypatch.setattr(typing, "get_type_hints", lambda each: asked.append(each) or real(each))
    item = SimpleNamespace(runtest=lambda: [gives_number() for _ in range(50)])
    assert return_types.wrong_return(item, WATCHED) is None
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("promise", "said"),
    [
        (NDArray[np.int64], "NDArray[np.int64]"),
        (NDArray[Any], "NDArray[Any]"),
        (tuple[NDArray[np.int32], int], "tuple[NDArray[np.int32], int]"),
        (np.float32, "float32"),
        (list[int] | None, "list[int] | None"),
        (type(None), "None"),
    ],
)
def test_a_promise_is_said_as_the_signature_writes_it(promise: Any, said: str) -> None:
    assert return_types._name(promise) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [("", "''"), (" a", "' a'"), ("a\n", "'a\\n'"), ("a b", "a b"), ([""], [""]), (0, 0)],
)
def test_a_text_that_nobody_would_see_is_shown_in_quotes(value: Any, said: Any) -> None:
    assert pytest_report._visible(value) == said
