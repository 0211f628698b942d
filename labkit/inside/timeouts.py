"""How long one process waits for another, on a machine that is busy or stands still: many processes
want one processor, a container is paused, a laptop is shut. Then the other process does not go on,
and is not to blame.

So the seconds are counted in which it computes or sleeps. While it wants a processor that others
have, waits for a disk, or is stopped, nothing is counted. The clock is the last resort, and far
more patient. Only Linux tells what a process does; on another system the clock counts.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

TURN_SECONDS = 0.1
"""The longest turn of waiting. A turn that takes longer counts for no more: the machine stood
still."""
LEAST_SECONDS = 0.01
"""The shortest turn, once a process is looked at: Linux counts its time in steps as long."""
WALL_TIMES = 20.0
"""The last resort: so many times the seconds that are allowed may pass by the clock. A process that
has a twentieth of a processor still ends."""
SLEEPS = "SZXI"
"""States of threads that want no processor, as Linux tells them: asleep, ended, idle."""
Waited = TypeVar("Waited")


class Look(NamedTuple):
    """What a process and its descendants have done so far.

    Attributes:
        computed: thread -> seconds of processor time. The threads and children of a process that
            have ended count as one thread more, under minus its number.
        is_asleep: whether no thread computes, wants to, waits for a disk, or is stopped.
    """

    computed: dict[int, float]
    is_asleep: bool


def look(process: int, but: int = 0) -> Look | None:
    """What a process and its descendants have done; None if it is gone, or the system does not
    tell. Another user's can be seen, too, and one in a sandbox.

    Args:
        but: a thread that is not asked whether it sleeps: the one that looks.
    """
    computed: dict[int, float] = {}
    is_asleep, family = True, [process]
    for number in family:  # which grows
        try:
            _, own, ended = _times_of(f"/proc/{number}")
            threads = os.listdir(f"/proc/{number}/task")
        except (OSError, ValueError):
            if number == process:
                return None
            continue
        computed[-number] = own + ended
        for thread in threads:
            with suppress(OSError, ValueError):  # it has just ended
                place = f"/proc/{number}/task/{thread}"
                state, own, _ = _times_of(place)
                computed[int(thread)] = own
                computed[-number] -= own
                is_asleep = is_asleep and (state in SLEEPS or int(thread) == but)
                with open(f"{place}/children", encoding="ascii") as file:
                    family += map(int, file.read().split())
    return Look(computed, is_asleep)


def _times_of(place: str) -> tuple[str, float, float]:
    """State of a process or thread, the seconds that it has computed, and those of its children
    that have ended."""
    with open(f"{place}/stat", encoding="utf-8", errors="replace") as file:
        words = file.read().rpartition(")")[2].split()
    user, system, *children = (int(word) / os.sysconf("SC_CLK_TCK") for word in words[11:15])
    return words[0], user + system, sum(children)


def kept_waiting(process: int) -> float:
    """The most seconds for which a thread of a process, or of its descendants, has waited for a
    processor that others had; 0 where the system does not tell."""
    longest = 0.0
    for thread in (look(process) or Look({}, True)).computed:
        with suppress(OSError, ValueError, IndexError):
            longest = max(longest, thread_kept_waiting(f"/proc/{thread}"))
    return longest


def thread_kept_waiting(place: str) -> float:
    """Seconds for which one thread, "/proc/7" or "/proc/7/task/8", has waited so.

    Raises:
        OSError, ValueError, IndexError: it has ended, or the system does not tell.
    """
    return int(Path(place, "schedstat").read_text(encoding="ascii").split()[1]) / 1e9


class Patience:
    """So many seconds of a process, spent in turns.

    Args:
        seconds: that it may compute or sleep. Of its threads, and its descendants', the busiest
            counts: eight threads that compute for a second spend one second.
        process: its number; None, or where the system tells nothing: the clock counts.
        times: so many times these seconds may pass by the clock.

    Attributes:
        waited: seconds that are spent. A turn that ends early, with an answer, is spent as a whole.
        passed: seconds by the clock, without those in which the machine stood still.
    """

    def __init__(
        self, seconds: float, process: int | None = None, times: float = WALL_TIMES
    ) -> None:
        self.seconds, self.process, self.times = seconds, process, times
        self.waited = self.passed = self._slept = 0.0
        self._seen: Look | None = None

    @property
    def left(self) -> float:
        return min(self.seconds - self.waited, self.times * self.seconds - self.passed)

    @contextmanager
    def turn(self) -> Iterator[float]:
        """Wait in it for so many seconds at most."""
        least = LEAST_SECONDS if self._seen else 0.0
        seconds, begin = max(min(self.left, TURN_SECONDS), least), time.monotonic()
        try:
            yield seconds
        finally:
            passed = min(time.monotonic() - begin, TURN_SECONDS)
            self.passed += passed
            self.waited += passed if passed < 0.99 * seconds else self._spent(passed)

    def _spent(self, passed: float) -> float:
        """Of the seconds of a turn those in which the process computed or slept."""
        before = self._seen
        self._seen = now = look(self.process) if self.process else None
        if before is None or now is None:
            return passed
        since = [t - before.computed.get(thread, 0.0) for thread, t in now.computed.items()]
        computed = min(max(since, default=0.0), passed)
        if not now.is_asleep:
            return computed
        self._slept += passed - computed
        return passed

    def told(self) -> str:
        """How the time was spent, for a message: "90 s of processor time"."""
        if self._seen is None:
            return f"{self.seconds:g} s"
        if self.waited < self.seconds:
            return f"{self.passed:.0f} s by the clock, and {self.waited:.0f} s of processor time"
        asleep = 2 * self._slept > self.seconds
        return f"{self.seconds:g} s{', mostly asleep' if asleep else ' of processor time'}"


def until_ended(wait: Callable[[float], Waited], patience: Patience) -> Waited:
    """What `wait` gives: a process's `wait` or `communicate`, to which a timeout is said.

    Raises:
        subprocess.TimeoutExpired: it did not end in time.
    """
    while True:
        try:
            with patience.turn() as most:
                return wait(most)
        except subprocess.TimeoutExpired:
            if patience.left <= 0:
                raise
