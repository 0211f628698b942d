"""Interrupt code that runs too long, where it stands, so that the line of an endless loop is
known.

Time is computing time: on a busy machine right code takes long by the clock on the wall and is not
to blame. Code that waits computes nothing, so a wall clock runs too, and is far more patient. It
need not be where the system tells that the whole process was at rest, or slept with all of its
children: that is a sleep, or a lock that is never opened, and no machine is to blame.

A browser's tab has no alarm of its own: the page rings it every `AGAIN_SECONDS`
(`labkit/tab/assets/tab.js`), where it may.

The wall clock is read in turns, and none counts for more than its length: in one that takes longer
everything stood still, as in a container that is paused.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

from labkit.inside import child, timeouts

AGAIN_SECONDS = 0.5
"""Until it rings again; and the longest turn."""
LEAST_TURNS = 10
"""In the seconds that are allowed."""
WALL_FACTOR = timeouts.WALL_TIMES if Path("/proc/self/schedstat").exists() else 4.0
"""So many times the computing time may pass on the wall. Fewer where the system does not tell
whether a process sleeps: there a sleep lasts as long."""
REST = 0.1
"""A process is at rest if it is busy for no larger share of the time. What its threads that have
ended waited for is not known, so it may be busier than it looks."""
PATIENCE = 3
"""So often it rings before it gives up on code that catches everything, and ends the process."""
STUCK = 75
"""Exit code of a process that was ended so; where it stood is on its stderr."""

computed = getattr(time, "thread_time", time.process_time)
"""The main thread's computing time; in a tab there is one thread, and no clock of its own."""
RINGS_ITSELF = hasattr(signal, "setitimer") and sys.platform != "emscripten"

_rings = 0
_stood: list[tuple[str, int, str]] = []
"""(file, line, function) of the running code when it rang first, the innermost last."""
_limit = _computed = _turn = 0.0
"""Seconds allowed; the main thread's computing time when it was armed; the seconds of a turn."""
_turns = 0
"""How many are over since then."""
_load: tuple[float, int] | None = None
"""What `load_of_all` said then."""
_slept = _main = 0.0
"""Seconds that all slept beyond those allowed; what `load_of_main` said in the last turn."""


class EndlessLoop(BaseException):
    """Raised in the running code when its time is over; `except Exception` does not stop it."""


def install() -> None:
    """Let the alarm raise `EndlessLoop` in the main thread. Windows has no such alarm: no limit."""
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, _ring)


def arm(seconds: float) -> None:
    """Ring after so many seconds of the main thread's computing, and then again until it is armed
    anew; 0 = not at all."""
    global _rings, _limit, _computed, _turn, _turns, _load, _slept, _main
    _limit = 0.0  # a turn of what was armed before may end now
    _stood.clear()
    _rings, _turns, _slept, _main = 0, 0, 0.0, 0.0
    _turn = min(AGAIN_SECONDS, seconds / LEAST_TURNS) if RINGS_ITSELF else AGAIN_SECONDS
    _computed, _load = computed(), load_of_all() if seconds else None
    _limit = seconds
    if RINGS_ITSELF:
        signal.setitimer(signal.ITIMER_REAL, _turn, _turn)


def interrupted() -> list[tuple[str, int, str]]:
    """Where the code stood when its time was over, the innermost line last; empty if it was not,
    since it was armed. What was raised there may not have come out: an event loop keeps it as the
    result of a task, and everything goes on."""
    return list(_stood)


def _ring(signum: int, frame: Any) -> None:
    global _rings, _turns
    _turns += 1
    if not _is_over():
        return
    _rings += 1
    while frame is not None and _rings == 1:
        _stood.insert(0, (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname))
        frame = frame.f_back
    if _rings > PATIENCE and not child.runs_here:
        child.say_where_it_stands()
        os._exit(STUCK)
    if RINGS_ITSELF:
        signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS, AGAIN_SECONDS)
    raise EndlessLoop


def _is_over() -> bool:
    """Whether the time is; of an alarm that is disarmed it never is."""
    global _slept
    waited = _turns * _turn
    if _limit and computed() - _computed >= _limit:
        return True
    if not _limit or waited < _limit:
        return False
    # Where it was kept busy, the machine is busy with others; it will ring later.
    if waited >= WALL_FACTOR * _limit or _kept_busy(waited) <= REST * waited:
        return True
    _slept += _turn if _all_sleep() else 0.0
    return _slept >= _limit


def _all_sleep() -> bool:
    """Whether this process and its children have done nothing in the turn that ends, and wait for
    nothing but each other."""
    global _main
    before, _main = _main, load_of_main()
    seen = timeouts.look(os.getpid(), but=threading.main_thread().native_id or 0)
    return bool(seen and seen.is_asleep and before and _main - before <= REST * _turn)


def load_of_main() -> float:
    """Seconds that the main thread has computed, or waited for a processor that others had; 0 on a
    system that does not tell."""
    try:
        return computed() + timeouts.thread_kept_waiting("/proc/self")
    except (OSError, ValueError, IndexError):
        return 0.0


def _kept_busy(waited: float) -> float:
    """Of so many seconds on the wall those in which this process did something, or would have;
    all of them if it cannot be known."""
    now = load_of_all()
    if _load is None or now is None or now[1] != _load[1]:
        return waited
    return now[0] - _load[0]


def load_of_all() -> tuple[float, int] | None:
    """Seconds that the threads of this process have computed, or waited for a processor that others
    had; and how often it had to wait for a disk. None if it has children, which may be those that
    do the work, or on a system that does not tell."""
    seconds = time.process_time()
    try:
        for thread in Path("/proc/self/task").iterdir():
            if (thread / "children").read_text():
                return None
            seconds += timeouts.thread_kept_waiting(str(thread))
        import resource

        usage = resource.getrusage(resource.RUSAGE_SELF)
        return seconds, usage.ru_inblock + usage.ru_majflt
    except (ImportError, OSError, ValueError, IndexError):
        return None


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
