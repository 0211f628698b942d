"""The child's side of `labkit.process.worker`: read a request, run its scenario, write the answer.

Answers go to a private copy of stdout; what the learner's code prints goes to stderr and cannot be
taken for an answer. This file trusts its own process as little as the parent does: whatever runs
here may replace any of it, and only gets to choose its own observations.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import traceback
from collections.abc import Callable
from typing import Any

from labkit.inside import plain
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


def main() -> None:
    """Serve requests until stdin ends."""
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    for raw in requests:
        request = json.loads(raw)
        number = request["id"]

        def answer(kind: str, value: Any, number: str = number) -> None:
            message = {"id": number, kind: plain.encode(value)}
            answers.write(json.dumps(message).encode() + b"\n")
            answers.flush()

        try:
            result = find(request["scenario"])(**plain.decode(request["args"]))
            if inspect.isgenerator(result):
                for item in result:
                    answer("item", item)
                result = None
            answer("end", result)
        except BaseException as error:
            answer("error", describe(error))


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
    frames = [
        [frame.filename, frame.lineno, frame.name]
        for frame in traceback.extract_tb(error.__traceback__)[-LAST_FRAMES:]
    ]
    return {"type": type(error).__name__, "message": shorten(str(error), 600), "frames": frames}


if __name__ == "__main__":
    main()
