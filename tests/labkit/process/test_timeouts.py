"""Who waits, and who looks whether something is at work, counts no time of a machine that stands
still."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from labkit.inside import basic, timeouts


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
        timeouts.until_ended(never, 1.0)
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

    assert timeouts.until_ended(second, 1.0) == 7


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
