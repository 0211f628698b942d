"""What any worker can be asked to do: answer, load packages. Runs in the child only.

A scenario is a function of keyword arguments, plain data in and plain data out; one that yields
sends each value as soon as it has it. `labkit.inside.worker_child` names the modules that hold
some.
"""

from __future__ import annotations

import importlib
import re
import time
from pathlib import Path

from labkit.inside import alarm

BUSY_WINDOWS = 10
WINDOW_SECONDS = 0.1
BUSY = 0.05
"""A process is busy if it computes for a larger share of each window. A loop without an end has all
of a processor, and a tenth where many want it; a thread that wakes a hundred times a second needs
one or two hundredths."""


def ping() -> str:
    """Answer: the worker has started."""
    return "pong"


def warm(packages: list[str]) -> None:
    """Import installed packages, so that later answers do not take the time for it."""
    for name in packages:
        importlib.import_module(name)


def is_busy() -> bool:
    """Whether this process computes although it is asked nothing: threads that were started when a
    module was imported, and never end. A pool that has just done something spins for a moment, so
    it is looked at for a whole second before it is said."""
    return all(_computes_in_a_window() for _ in range(BUSY_WINDOWS))


def _computes_in_a_window() -> bool:
    """A window that takes far longer than it should says nothing: everything stood still in it."""
    for _ in range(BUSY_WINDOWS):
        begin, at = time.process_time(), time.monotonic()
        time.sleep(WINDOW_SECONDS)
        if time.process_time() - begin >= BUSY * WINDOW_SECONDS:
            return True
        if time.monotonic() - at < 2 * WINDOW_SECONDS:
            return False
    return False


def computed() -> float | None:
    """Seconds that the threads of this process have computed, or waited for a processor that others
    had; None if it cannot be known, as on a system that does not tell."""
    load = alarm.load_of_all()
    return load[0] if load else None


def written() -> int | None:
    """Bytes that this process has written, to files and answers; None if it cannot be known."""
    try:
        return int(re.findall(r"^wchar: (\d+)", Path("/proc/self/io").read_text(), re.M)[0])
    except (OSError, IndexError):
        return None
