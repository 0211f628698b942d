"""Change request 1: of the images that no request needs, the one with the most rows goes first."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect


def ask(lab: Any, manager: Any, rows: int) -> bool:
    bird = lab.image(2, "bird", mask=(True,) * rows)
    return bool(manager.can_allocate(lab.request("ana", bird), 0, 99, 0))


def test_change_1_the_largest_goes(lab: Any) -> None:
    """cat 4, dog 6, owl 3: for 5 rows the dog goes, though the cat is older."""
    manager = lab.holding(14, free=("cat", "dog", "owl"))
    expect(ask(lab, manager, 5), True, at="5 rows, 1 is empty")
    expect(manager.freed, ["dog"], at="freed")
    expect(list(manager.freeable), ["cat", "owl"], at="who stays, oldest first")
    expect((manager.num_free_slots, manager.num_freeable_slots), (7, 14), at="empty, and room")


def test_change_1_then_the_next_largest(lab: Any) -> None:
    """As many as it takes, and no more."""
    manager = lab.holding(13, free=("owl", "cat", "dog"))
    expect(ask(lab, manager, 8), True, at="8 rows, none is empty")
    expect(manager.freed, ["dog", "cat"], at="freed, in order")


def test_change_1_nothing_goes_without_need_or_use(lab: Any) -> None:
    """Empty rows come first; and if all of it would not suffice, all of it stays."""
    manager = lab.holding(16, "dog", free=("cat",))
    expect(ask(lab, manager, 6), True, at="6 rows, 6 are empty")
    expect(manager.freed, [], at="freed")
    expect(ask(lab, manager, 11), False, at="11 rows, room for 10")
    expect(manager.freed, [], at="freed")
