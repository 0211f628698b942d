"""What the learner's files raised in a test and other code caught: an engine that answers with
the error, a task whose result is not asked for, a thread. The test then sees its traces only.

Used while a failed test runs for the second time, since to trace each line costs time.
"""

from __future__ import annotations

import contextlib
import linecache
import sys
import threading
from collections.abc import Collection, Iterator
from types import FrameType
from typing import Any

from labkit.inside.alarm import message_of, shorten

ENDS = (StopIteration, StopAsyncIteration, GeneratorExit, NotImplementedError, OSError)
"""What is raised to say that something is over, or missing, and no slip."""
MEANT = ("raise", "assert ")
"""So a line begins that raises on purpose."""


@contextlib.contextmanager
def watching(files: Collection[str]) -> Iterator[list[dict[str, Any]]]:
    """Fill a list with the exceptions that leave a function of some files unasked for, each where
    it came up: {"error", "message", "frames": [(file, line, function)]}."""
    found: list[dict[str, Any]] = []
    seen: set[int] = set()
    kept: list[BaseException] = []  # alive, so that no other takes its number
    pending: dict[FrameType, BaseException] = {}

    def trace(frame: FrameType, event: str, value: Any) -> Any:
        if event == "call":
            return trace if frame.f_code.co_filename in files else None
        if event == "exception":
            pending[frame] = value[1]
        elif (error := pending.pop(frame, None)) and event == "return":  # else it was caught here
            if id(error) not in seen and _is_slip(error, frame):
                found.append(_described(error, frame))
            seen.add(id(error))
            kept.append(error)
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    threading.settrace(trace)
    try:
        yield found
    finally:
        threading.settrace(None)  # type: ignore[arg-type]
        sys.settrace(previous)


def _is_slip(error: BaseException, frame: FrameType) -> bool:
    """Whether Python has raised it, and not a line that refuses something."""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    by_python = type(error).__module__ == "builtins" and isinstance(error, Exception)
    return by_python and not isinstance(error, ENDS) and not line.startswith(MEANT)


def _described(error: BaseException, frame: FrameType) -> dict[str, Any]:
    code = frame.f_code
    return {
        "error": type(error).__name__,
        "message": shorten(message_of(error)),
        "frames": [(code.co_filename, frame.f_lineno, code.co_qualname)],
    }
