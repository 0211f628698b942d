"""Interrupt code that runs too long, where it stands, so that the line of an endless loop is
known."""

from __future__ import annotations

import os
import signal
from typing import Any

AGAIN_SECONDS = 0.5
PATIENCE = 3
"""So often it rings before it gives up on code that catches everything, and ends the process."""
STUCK = 75
"""Exit code of a process that was ended so; where it stood is on its stderr."""

_rings = 0


class EndlessLoop(BaseException):
    """Raised in the running code when its time is over; `except Exception` does not stop it."""


def install() -> None:
    """Let the alarm raise `EndlessLoop` in the main thread. Windows has no such alarm: no limit."""
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, _ring)


def arm(seconds: float) -> None:
    """Ring in so many seconds, and then again until it is armed anew; 0 = not at all."""
    global _rings
    _rings = 0
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_SECONDS)


def _ring(signum: int, frame: Any) -> None:
    global _rings
    _rings += 1
    if _rings > PATIENCE:
        signal.raise_signal(signal.SIGUSR1)  # `labkit.child` has made it print the stack
        os._exit(STUCK)
    raise EndlessLoop


def shorten(value: Any, limit: int = 4000) -> str:
    """`repr` that cannot fail and cannot flood the screen."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except Exception as error:
        text = f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"
