"""What a worker does on the learner's stack: one step of a program, or of a scenario.

Nothing here raises, and nothing here knows the pipe or the request's name: code that walks
up from a learner's function finds these frames, and behind them only `labkit.inside.own_stack`.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from labkit.inside import plain, program
from labkit.inside.alarm import shorten

LAST_FRAMES = 12
SCENARIOS = (
    "labkit.inside.basic",
    "labkit.trace.scenario",
    "labkit.arena.scenario",
    "labkit.learner.ab",
    "labkit.practice.scenes",
    "labkit.kernels.watch.sandbox",
    "labkit.kernels.measure.gpu",
)
"""The modules whose public functions can be asked for. Text, so that this file imports none: each
is imported when it is first asked for, and a worker that lacks it cannot be asked."""
_running: Iterator[Any] = iter(())
_values: dict[int, Any] = {}
"""What the steps of a program have made. It is kept here, and not by the caller, because a
value is finalized on the stack of the code that lets it go."""


def find_names(targets: list[str]) -> tuple[str, str]:
    """Find what a program's steps will call, before graded code runs that could replace it; what
    cannot be found is looked for in its step."""
    program.FOUND.clear()
    for target in targets:
        with contextlib.suppress(BaseException):
            program.FOUND[target] = program.find_object(target)
    return "done", ""


def one_step(step: dict[str, Any], first: bool) -> tuple[str, str]:
    """("done", ""), ("seen", JSON), ("raised", JSON) of an exception of the learner's, or ("error",
    JSON) of another. `first`: of a program."""
    try:
        if first:
            _values.clear()
        step = plain.decode(step)
        try:
            value = program.do(step, _values)
        except BaseException as error:
            plain.check_size(error)
            if "refuse" in step:
                classes = plain.class_names(type(error))
                return "seen", written((program.RAISED, classes, message(error)))
            if not isinstance(error, Exception):
                raise
            return "raised", written({"!raises": plain.class_name(type(error))})
        return ("done", "") if "call" in step or "set" in step else ("seen", written(value))
    except BaseException as error:
        return "error", written(describe(error))


def begin(scenario: str, args: dict[str, Any]) -> tuple[str, str]:
    """Start a scenario: ("end", JSON), ("error", JSON), or ("begun", "") if there is something to
    advance."""
    global _running
    try:
        result = find(scenario)(**plain.decode(args))
        if not inspect.isgenerator(result):
            return "end", written(result)
        _running = result
        return "begun", ""
    except BaseException as error:
        return "error", written(describe(error))


def advance() -> tuple[str, str]:
    """What the begun scenario yields next: ("item", JSON), or ("end", JSON) or ("error", JSON)."""
    try:
        for value in _running:
            return "item", written(value)
        return "end", "null"
    except BaseException as error:
        return "error", written(describe(error))


def written(value: Any) -> str:
    return json.dumps(plain.encode(value))


def find(scenario: str) -> Callable[..., Any]:
    """The function "module:function" of one of the modules above, and nothing else.

    Raises:
        ValueError: no such scenario.
    """
    module, _, name = scenario.partition(":")
    if module in SCENARIOS:
        function = getattr(importlib.import_module(module), name, None)
        if inspect.isfunction(function) and function.__module__ == module and name[0] != "_":
            return function
    raise ValueError(f"there is no scenario {scenario!r}; they are functions of {SCENARIOS}")


def describe(error: BaseException) -> dict[str, Any]:
    """An exception as plain data: class, message, and the innermost frames."""
    try:
        plain.check_size(error)
    except plain.TooLarge as larger:
        error = larger
    frames = [
        [frame.filename, frame.lineno, frame.name]
        for frame in traceback.extract_tb(error.__traceback__, -LAST_FRAMES)
    ]
    return {"type": plain.class_name(type(error)), "message": message(error), "frames": frames}


def message(error: BaseException) -> str:
    """What an exception says. Its class may be the learner's, and `__str__` raise or lie."""
    try:
        return shorten(str.__str__(str(error)), 600)
    except BaseException as another:
        return f"its __str__ raises {plain.class_name(type(another))}"
