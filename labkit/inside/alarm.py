"""Interrupt code that runs too long, where it stands, so that the line of an endless loop is
known.

Time is computing time: on a busy machine right code takes long by the clock on the wall and is not
to blame. Code that waits computes nothing, so a wall clock runs too, and is more patient.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any, NoReturn

AGAIN_SECONDS = 0.5
WALL_FACTOR = 4
"""So many times the computing time may pass on the wall."""
PATIENCE = 3
"""So often it rings before it gives up on code that catches everything, and ends the process."""
STUCK = 75
"""Exit code of a process that was ended so; where it stood is on its stderr."""

_rings = 0
_limit = _computed = _begin = 0.0
"""Seconds allowed; the main thread's computing time and the wall clock when it was armed."""


class EndlessLoop(BaseException):
    """Raised in the running code when its time is over; `except Exception` does not stop it."""


def install() -> None:
    """Let the alarm raise `EndlessLoop` in the main thread. Windows has no such alarm: no limit."""
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, _ring)


def arm(seconds: float) -> None:
    """Ring after so many seconds of the main thread's computing, and then again until it is armed
    anew; 0 = not at all."""
    global _rings, _limit, _computed, _begin
    _rings, _limit = 0, seconds
    _computed, _begin = time.thread_time(), time.monotonic()
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_SECONDS)


def _ring(signum: int, frame: Any) -> None:
    global _rings
    computed, waited = time.thread_time() - _computed, time.monotonic() - _begin
    if computed < _limit and waited < WALL_FACTOR * _limit:
        return  # the machine is busy with others; it will ring again
    _rings += 1
    if _rings > PATIENCE:
        signal.raise_signal(signal.SIGUSR1)  # `labkit.inside.child` has made it print the stack
        os._exit(STUCK)
    raise EndlessLoop


def leave(code: int) -> NoReturn:
    """End this process at once. An interpreter that ends by itself waits for threads, runs what was
    registered for its exit, and finalizes objects: whatever of that a learner's code has left
    behind may never end, and all that it was asked for has been answered."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def message_of(error: BaseException) -> str:
    """What an exception says; it may be one of the learner's own, whose `str` raises another."""
    try:
        return str.__str__(str(error))
    except Exception as second:
        return f"<its message cannot be made: {type(second).__name__}>"


def shorten(value: Any, limit: int = 4000) -> str:
    """`repr` that cannot fail and cannot flood the screen."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except Exception as error:
        text = f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"
