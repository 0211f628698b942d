"""Tests beside threads and processes that may stand still for seconds, as on any busy machine.

Nothing is asserted about which is faster. What must still run when a test looks is slowed until
the test has seen it (:class:`Brake`); what must come to be is waited for (:func:`eventually`).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.scheduler_output import SchedulerOutput
from mini_vllm.kv_transfer.scheduler import RemoteKVScheduler

BRAKE = "MINI_VLLM_TEST_BRAKE"
PACED, PACED_REMOTE_KV = f"{__file__}:Paced", f"{__file__}:PacedRemoteKV"
"""The schedulers that engines with a :class:`Brake` are started with."""
SECONDS_A_STEP = 0.5
PATIENCE = 60.0
"""Seconds after which what a test waits for counts as never coming."""


class Paced(Scheduler):
    """vLLM's rules; each step takes half a second while a test holds the brake."""

    def schedule(self) -> SchedulerOutput:
        if Path(os.environ[BRAKE]).exists():
            time.sleep(SECONDS_A_STEP)
        return super().schedule()


class PacedRemoteKV(Paced, RemoteKVScheduler):
    """The same beside KV that other engines fetch."""


class Brake:
    """Slows engines down that were started with :data:`PACED`, and ``variable`` set."""

    def __init__(self) -> None:
        self.file = Path(tempfile.gettempdir(), f"brake-{uuid.uuid4().hex}")
        self.variable = (BRAKE, str(self.file))

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Meanwhile 200 tokens take 100 s, however long the test stands still."""
        self.file.touch()
        try:
            yield
        finally:
            self.file.unlink()


def cpu_seconds(
    work: Callable[[], object], limit: float, clock: Callable[[], float] = time.process_time
) -> float:
    """What some work takes at least, of three times at most: the first below the limit counts. A
    virtual machine that stands still may take that for computing."""
    taken = []
    for _ in range(3):
        begin = clock()
        work()
        taken.append(clock() - begin)
        if taken[-1] < limit:
            break
    return min(taken)


def eventually(is_so: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Wait until something is so; ``what`` says what is wrong if it never is."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.02)
