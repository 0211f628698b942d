"""Task 15.13: leases: how long blocks are held for a peer."""

from __future__ import annotations

import math
from typing import Any

import pytest

from labkit.testing import expect

ADA = ("lease-1", [4, 5, 6], None)


def test_15_13_the_holder_of_the_lease_may_read(lab: Any) -> None:
    """All blocks or some of them, while it runs and until its deadline."""
    for deadline in (None, math.inf):
        table = lab.leases(ada=("lease-1", [4, 5, 6], deadline))
        table._check(lab.question())
        table._check(lab.question(block_ids=[]))


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"engine_id": "west"}, "another engine had this address"),
        ({"namespace": b"s" * 32}, "another model"),
        ({"request_id": "ben"}, "nothing is held for ben"),
        ({"lease": "lease-0"}, "the id belonged to an earlier request"),
        ({"block_ids": [5, 9]}, "block 9 is not ada's"),
        ({"namespace": b"n" * 31 + b"s"}, "its last byte differs"),
        ({"lease": "lease-"}, "the beginning of a name is no name"),
        ({"lease": ""}, "no name at all"),
    ],
)
def test_15_13_others_are_refused(lab: Any, other: dict[str, Any], why: str) -> None:
    """A ValueError, and its text never has the name of the lease that there is."""
    with pytest.raises(ValueError) as error:
        lab.leases(ada=ADA)._check(lab.question(**other))
        raise AssertionError(why)
    text = str(error.value)
    expect("lease-1" in text, False, at=f"the lease's name in the message: {why}", message=text)


def test_15_13_nothing_is_read_after_the_deadline(lab: Any) -> None:
    """Past it the blocks may be another request's, also if the table is not cleared yet."""
    with pytest.raises(ValueError):
        lab.leases(ada=("lease-1", [5, 6], 0.0))._check(lab.question())


class OneTurn:
    """A lock that complains, where a real one would wait for itself for ever."""

    is_held = False

    def acquire(self, *_: Any, **__: Any) -> bool:
        assert not self.is_held, "`reading` holds the lock already: a second one waits for ever"
        self.is_held = True
        return True

    def release(self) -> None:
        self.is_held = False

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: Any) -> None:
        self.release()


def test_15_13_under_the_lock_of_reading(lab: Any) -> None:
    """`reading` checks with the lock in its hand."""
    table = lab.leases(ada=ADA)
    table._lock = OneTurn()
    with table.reading(lab.question()):
        pass


def test_15_13_released_or_past_their_time(lab: Any) -> None:
    """Both kinds are over; each is named once, and leaves the table."""
    table = lab.leases(ada=("1", [4], 90.0), ben=("2", [5], 110.0), cyd=("3", [6], 110.0))
    table.released = {"ben"}
    expect(table.take_ended(100.0), {"ada", "ben"}, at="at 100: ada's 90 is past, ben is released")
    expect(sorted(table.leases), ["cyd"], at="still held")
    expect(table.take_ended(100.0), set(), at="asked again")
    expect(table.take_ended(110.0), {"cyd"}, at="at 110, her deadline")


def test_15_13_a_running_request_is_not_over(lab: Any) -> None:
    """A request that has not ended has no deadline, and stays even if it was released."""
    table = lab.leases(ada=("1", [4], None))
    table.released = {"ada"}
    expect(table.take_ended(1e9), set(), at="ada runs")
    table.leases["ada"].deadline = 1e12
    expect(table.take_ended(1.0), {"ada"}, at="ada has ended: her release counts now")
