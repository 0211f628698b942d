"""Change request 2: a tenth is nothing."""

from __future__ import annotations

from labkit.testing import expect
from mini_vllm.policies.fleet import EarliestFirstToken, Job, Placement, Prices, View

PRICES = Prices(0.0, 1.0, 0.0, 10.0, 1.0, 1.0, 0.5)
JOB = Job(100, 500.0, 5.0)


def place(*machines: tuple[float, int]) -> Placement:
    """Local machines with a queue, and so many requests that run."""
    decode = [View(0, queue, running, 1000) for queue, running in machines]
    return EarliestFirstToken(PRICES).place(JOB, [], decode)


def test_change_2_the_quieter_of_near_ones() -> None:
    """100, 108 and 111 seconds."""
    found = place((0.0, 9), (8.0, 2), (11.0, 0))
    expect(found, Placement(None, 1), at="9, 2 and 0 run; first tokens after 100, 108, 111 s")


def test_change_2_of_equally_quiet_ones_the_earliest() -> None:
    """Both run two."""
    expect(place((6.0, 2), (1.0, 2)), Placement(None, 1), at="106 and 101 s, 2 requests each")


def test_change_2_far_is_far() -> None:
    """A quiet machine that is late stays late."""
    expect(place((0.0, 9), (50.0, 0)), Placement(None, 0), at="100 s and 150 s")
