"""How long one process waits for another, on a machine that may stand still: a container is paused,
a laptop is shut, or many wait for one processor. Then no process goes on, and none is to blame."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

TURN_SECONDS = 0.1
"""So long one waits before one looks at the clock. No turn counts for more: in one that takes
longer everything stood still."""
Waited = TypeVar("Waited")


class Patience:
    """So many seconds, spent in turns.

    Attributes:
        seconds: how many there are.
        waited: how many are spent.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self.waited = seconds, 0.0

    @property
    def left(self) -> float:
        return self.seconds - self.waited

    @contextmanager
    def turn(self) -> Iterator[float]:
        """Wait in it for so many seconds at most."""
        seconds, begin = max(min(self.left, TURN_SECONDS), 0.0), time.monotonic()
        try:
            yield seconds
        finally:
            self.waited += min(time.monotonic() - begin, TURN_SECONDS)


def until_ended(wait: Callable[[float], Waited], seconds: float) -> Waited:
    """What `wait` gives: a process's `wait` or `communicate`, to which a timeout is said.

    Raises:
        subprocess.TimeoutExpired: it did not end in so many seconds.
    """
    patience = Patience(seconds)
    while True:
        try:
            with patience.turn() as most:
                return wait(most)
        except subprocess.TimeoutExpired:
            if patience.left <= 0:
                raise
