"""The second run of a failed test, which looks for a value of a wrong type."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import typing
from collections.abc import Callable, Iterator
from functools import lru_cache
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


def yields_texts() -> Iterator[int]:
    yield 3
    yield "three"  # type: ignore[misc]


def yields_numbers() -> Iterator[int]:
    yield 3


async def waits_and_gives_nothing() -> int:
    await asyncio.sleep(0)
    return None  # type: ignore[return-value]


async def waits_and_gives_a_number() -> int:
    await asyncio.sleep(0)
    return 3


@lru_cache
def gives_text_and_remembers() -> int:
    return "three"  # type: ignore[return-value]


def on_a_thread(function: Callable[[], object]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join(timeout=300)


NAMES = (
    "gives_text gives_number yields_texts yields_numbers waits_and_gives_nothing"
    " waits_and_gives_a_number gives_text_and_remembers"
)
WATCHED = {__file__: dict.fromkeys(NAMES.split(), __name__)}


@pytest.mark.parametrize(
    ("runs", "function", "verb", "kind"),
    [
        (lambda: on_a_thread(gives_text), "gives_text", "returned", "str"),
        (lambda: list(yields_texts()), "yields_texts", "yielded", "str"),
        (
            lambda: asyncio.run(waits_and_gives_nothing()),
            "waits_and_gives_nothing",
            "returned",
            "NoneType",
        ),
    ],
)
def test_threads_generators_and_coroutines_are_looked_at(
    runs: Callable[[], object], function: str, verb: str, kind: str
) -> None:
    """Ranks are threads, loaders yield, and a server's functions are awaited."""
    found = return_types.wrong_return(SimpleNamespace(runtest=runs), WATCHED)
    assert found and (found["function"], found["verb"], found["type"]) == (function, verb, kind)


def test_a_function_with_a_cache_runs_again() -> None:
    gives_text_and_remembers()
    item = SimpleNamespace(runtest=gives_text_and_remembers)
    found = return_types.wrong_return(item, WATCHED)
    assert found and found["type"] == "str"


@pytest.mark.parametrize(
    "runs",
    [
        lambda: on_a_thread(gives_number),
        lambda: list(yields_numbers()),
        lambda: yields_numbers().close(),  # type: ignore[attr-defined]
        lambda: next(yields_numbers()),
        lambda: asyncio.run(waits_and_gives_a_number()),
    ],
)
def test_what_keeps_its_promise_is_no_fault(runs: Callable[[], object]) -> None:
    assert return_types.wrong_return(SimpleNamespace(runtest=runs), WATCHED) is None
    assert threading.getprofile() is None


@dataclasses.dataclass
class Batch:
    positions: NDArray[np.int64]
    size: int


def gives(value: Any, promised: Any) -> Callable[[], Any]:
    """A function that promises something and returns `value`, under a name that is watched."""

    def gives_text() -> Any:
        return value

    gives_text.__annotations__["return"] = promised
    gives_text.__code__ = gives_text.__code__.replace(co_qualname="gives_text")
    return gives_text


ZEROS = np.zeros(2, dtype=np.int64)


@pytest.mark.parametrize(
    ("value", "promised", "inside"),
    [
        (Batch([0], 1), Batch, "its `positions` is of type list"),  # type: ignore[arg-type]
        (Batch(ZEROS, 1), Batch, ""),
        (Batch(ZEROS, ZEROS[0]), Batch, ""),
        ([3, "4"], list[int], "its item 1 is of type str"),
        ([ZEROS[0], True], list[int], ""),
        ([ZEROS], list[int] | None, "its item 0 is of type ndarray"),
        ((1,), tuple[int, int], "it has 1 parts, not 2"),
        ((1, None), tuple[int, str], "its part 1 is of type NoneType"),
        ((1, 2, 3), tuple[int, ...], ""),
        (((1, "2"),), tuple[Any, ...], ""),
    ],
)
def test_the_parts_of_a_value_are_looked_at(
    value: Any, promised: Any, inside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of tensors, or a batch of lists, looks as it should from outside."""
    function = gives(value, promised)
    monkeypatch.setitem(globals(), "gives_text", function)
    found = return_types.wrong_return(SimpleNamespace(runtest=function), WATCHED)
    assert (found["inside"] if found else "") == inside


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
def test_an_invisible_text_is_shown_in_quotes(value: Any, said: Any) -> None:
    assert pytest_report._visible(value) == said


def test_of_a_printed_traceback_the_lines_of_the_learner_stay() -> None:
    """A rank that is a process prints it, with all that Python did to start the process."""
    printed = (
        "rank 1 is here\n"
        "Process SpawnProcess-2:\n"
        "Traceback (most recent call last):\n"
        '  File "/python/process.py", line 314, in _bootstrap\n'
        "    self.run()\n"
        "    ^^^^^^^^^^\n"
        '  File "<frozen runpy>", line 291, in run_path\n'
        '  File "/labs/ring.py", line 61, in ring\n'
        "    sending.wait()\n"
        '  File "/python/threading.py", line 9, in wait\n'
        "    raise TimeoutError\n"
        "TimeoutError: all wait\n"
    )
    assert pytest_report._own_frames(printed, {"/labs/ring.py"}).splitlines() == [
        "rank 1 is here",
        "Process SpawnProcess-2:",
        "Traceback (most recent call last):",
        '  File "/labs/ring.py", line 61, in ring',
        "    sending.wait()",
        "TimeoutError: all wait",
    ]


class InterpreterError(Exception):
    """Named as Triton's."""


def test_of_a_kernel_s_error_the_one_inside_is_told() -> None:
    """Its traceback has the kernel's line; that of Triton's own error ends in Triton."""
    for message, is_told in (("sum of 'int'", True), ("TODO 04.2: write it", False)):
        wrapping = InterpreterError(message)
        wrapping.__cause__ = TypeError(message)
        inner = pytest_report._inside_of_a_kernel(wrapping)
        assert inner is (wrapping.__cause__ if is_told else wrapping)
    other = ValueError("as it is")
    assert pytest_report._inside_of_a_kernel(other) is other
