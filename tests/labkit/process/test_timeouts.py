"""Waiting for a process, and looking whether it is at work, count no time of a machine that stands
still."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from labkit.inside import basic, timeouts
from labkit.inside.timeouts import Look, Patience

LINUX = pytest.mark.skipif(
    not Path("/proc/self/task").exists(), reason="not run: this system tells no times of processes"
)


class Clock:
    """Stands for the `time` module on a machine that stands still now and then.

    Args:
        share: of the time that passes, what the process computes.
        pauses: seconds that each of the first waits takes longer.
    """

    def __init__(self, share: float = 0.0, pauses: list[float] | None = None) -> None:
        self.now, self.computed, self.share, self.pauses = 0.0, 0.0, share, list(pauses or [])

    def monotonic(self) -> float:
        return self.now

    def process_time(self) -> float:
        return self.computed

    def sleep(self, seconds: float) -> None:
        seconds = max(seconds, 1e-3)  # none is shorter, and a long time swallows what is tiny
        if self.pauses:
            self.now += seconds + self.pauses.pop(0)
        else:
            self.now += seconds
            self.computed += self.share * seconds


@pytest.mark.parametrize("pauses", [[], [60.0], [3.0, 0.0, 3.0, 600.0]])
def test_a_turn_counts_for_no_more_than_its_length(
    monkeypatch: pytest.MonkeyPatch, pauses: list[float]
) -> None:
    clock = Clock(pauses=pauses)
    monkeypatch.setattr(timeouts, "time", clock)
    asked = []

    def never(timeout: float) -> None:
        asked.append(timeout)
        clock.sleep(timeout)
        raise subprocess.TimeoutExpired("a child", timeout)

    with pytest.raises(subprocess.TimeoutExpired):
        timeouts.until_ended(never, Patience(1.0))
    assert sum(asked) == pytest.approx(1.0)
    assert clock.now == pytest.approx(1.0 + sum(pauses), abs=0.01)


def test_what_ends_in_a_pause_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(pauses=[60.0])
    monkeypatch.setattr(timeouts, "time", clock)
    answers: Any = iter([None, 7])

    def second(timeout: float) -> int:
        clock.sleep(timeout)
        if (answer := next(answers)) is None:
            raise subprocess.TimeoutExpired("a child", timeout)
        return int(answer)

    assert timeouts.until_ended(second, Patience(1.0)) == 7


@pytest.mark.parametrize(
    ("share", "pauses", "busy"),
    [
        (1.0, [], True),
        (1.0, [3.0], True),
        (0.1, [3.0, 3.0], True),
        (0.01, [], False),
        (0.0, [3.0] * 1000, False),
    ],
)
def test_a_thread_is_at_work_though_the_machine_stood_still(
    monkeypatch: pytest.MonkeyPatch, share: float, pauses: list[float], busy: bool
) -> None:
    monkeypatch.setattr(basic, "time", Clock(share, pauses))
    assert basic.is_busy() is busy


def ended(code: str, seconds: float, times: float = 1000.0, go: Any = None) -> tuple[Any, Patience]:
    """Exit code of a Python program, None if it was stopped; and the patience with it."""
    words = [sys.executable, "-S", "-c", code]
    with subprocess.Popen(words, start_new_session=True) as process:
        patience = Patience(seconds, process.pid, times)
        try:
            if go:
                go(process)
            return timeouts.until_ended(process.wait, patience), patience
        except subprocess.TimeoutExpired:
            return None, patience
        finally:
            with suppress(ProcessLookupError):  # its children, too
                os.killpg(process.pid, signal.SIGKILL)


LOOP = "while True: pass"
CHILDREN = f"import subprocess, sys\nsubprocess.run([sys.executable, '-S', '-c', {LOOP!r}])"
THREADS = (
    f"import threading\nfor _ in range(3): threading.Thread(target=exec, args=[{LOOP!r}]).start()"
)


@LINUX
@pytest.mark.parametrize("code", [LOOP, CHILDREN, THREADS], ids=["loop", "child", "threads"])
def test_what_computes_is_stopped_after_so_much_processor_time(code: str) -> None:
    """Its own, or that of a child or a thread, however many there are."""
    begin = time.monotonic()
    code_or_none, patience = ended(code, 0.7)
    assert code_or_none is None and patience.told() == "0.7 s of processor time"
    assert 0.7 <= patience.waited < 0.9 and patience.passed <= time.monotonic() - begin


@LINUX
def test_what_sleeps_is_stopped_after_as_long() -> None:
    """No machine is to blame, so nothing is waited for that never comes."""
    code, patience = ended("import time; time.sleep(600)", 0.7)
    assert code is None and patience.told() == "0.7 s, mostly asleep"


@LINUX
def test_the_clock_is_the_last_resort() -> None:
    """For what neither computes nor sleeps: this one has stopped itself."""
    stop = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
    code, patience = ended(stop, 0.3, times=5.0)
    assert code is None and patience.waited < 0.3 <= patience.passed
    assert patience.told().startswith("2 s by the clock, and 0 s of processor time")


@LINUX
def test_what_has_a_tenth_of_a_processor_is_not_stopped_early() -> None:
    """It is stopped nine tenths of the time, as it were on a machine that has others to run."""
    over = threading.Event()

    def slow(process: subprocess.Popen[bytes]) -> None:
        def work() -> None:
            with suppress(ProcessLookupError):  # it has ended
                while not over.wait(0.02):
                    os.kill(process.pid, signal.SIGSTOP)
                    time.sleep(0.18)
                    os.kill(process.pid, signal.SIGCONT)

        threading.Thread(target=work, daemon=True).start()

    compute = "import time\nwhile time.process_time() < 0.4: pass"
    begin = time.monotonic()
    try:
        code, patience = ended(compute, 1.2, go=slow)
    finally:
        over.set()
    assert code == 0 and time.monotonic() - begin > 2.0 and patience.waited < 1.2


@pytest.mark.parametrize(
    ("share", "is_asleep", "passes"),
    [(1.0, False, 5.0), (0.1, False, 50.0), (0.01, False, 100.0), (0.1, True, 5.0)],
    ids=["all of it", "a tenth", "a hundredth", "asleep"],
)
def test_seconds_pass_as_fast_as_a_process_goes_on(
    monkeypatch: pytest.MonkeyPatch, share: float, is_asleep: bool, passes: float
) -> None:
    """Of four threads that have the same share of a processor each."""
    clock = Clock(share)
    monkeypatch.setattr(timeouts, "time", clock)
    monkeypatch.setattr(
        timeouts, "look", lambda process: Look(dict.fromkeys(range(4), clock.computed), is_asleep)
    )

    def never(timeout: float) -> None:
        clock.sleep(timeout)
        raise subprocess.TimeoutExpired("a child", timeout)

    with pytest.raises(subprocess.TimeoutExpired):
        timeouts.until_ended(never, Patience(5.0, process=1, times=20.0))
    assert clock.now == pytest.approx(passes, rel=0.05)


def test_where_no_system_tells_the_clock_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "look", lambda process: None)
    code, patience = ended("import time; time.sleep(600)", 0.3)
    assert code is None and patience.told() == "0.3 s"


@LINUX
def test_an_answer_that_waits_for_a_processor_is_known_to_wait() -> None:
    """More threads than processors: each has to wait."""
    count = (os.cpu_count() or 1) + 2
    each = f"subprocess.Popen([sys.executable, '-S', '-c', {LOOP!r}])"
    code = f"import subprocess, sys\nfor _ in range({count}): {each}\ninput()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE,
                          start_new_session=True) as process:  # fmt: skip
        try:
            patience = Patience(60.0)
            while timeouts.kept_waiting(process.pid) < 0.2 and patience.left > 0:
                with patience.turn() as seconds:
                    time.sleep(seconds)
            assert timeouts.kept_waiting(process.pid) >= 0.2
        finally:
            os.killpg(process.pid, signal.SIGKILL)
