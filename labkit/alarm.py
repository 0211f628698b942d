"""Interrupt code that runs too long, where it stands, so that the line of an endless loop is
known."""

from __future__ import annotations

import signal
from typing import Any


class EndlessLoop(BaseException):
    """Raised in the running code when its time is over; `except Exception` does not stop it."""


def install() -> None:
    """Let the alarm raise `EndlessLoop` in the main thread. Windows has no such alarm: no limit."""
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, _ring)


def arm(seconds: float) -> None:
    """Ring in so many seconds; 0 = not at all."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _ring(signum: int, frame: Any) -> None:
    raise EndlessLoop


def shorten(value: Any, limit: int = 4000) -> str:
    """`repr` that cannot fail and cannot flood the screen."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except Exception as error:
        text = f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"
