"""13.5: room for an image."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect


def ask(lab: Any, manager: object, name: str, budget: int = 99, promised: int = 0) -> bool:
    return manager.can_allocate(lab.request("ana", lab.image(2, name)), 0, budget, promised)


def test_13_5_it_must_fit_the_budget(lab: Any) -> None:
    """An image of 6 rows does not fit if 5 may still be encoded."""
    manager = lab.holding(10, free=("cat",))
    expect(ask(lab, manager, "dog", budget=5), False, at="a dog of 6 rows, budget 5")
    expect(list(manager.freeable), ["cat"], at="nothing was evicted for it")
    expect(ask(lab, manager, "dog", budget=6), True, at="budget 6")
    yours = ask(lab, manager, "dog", budget=6, promised=2)
    expect(yours, True, at="budget 6, which has paid for the 2 promised rows")


def test_13_5_empty_rows_suffice(lab: Any) -> None:
    """No image is evicted without need."""
    manager = lab.holding(10, free=("cat",))
    expect(ask(lab, manager, "dog"), True, at="6 rows are empty, the dog has 6")
    expect(manager.freed, [], at="freed")


def test_13_5_the_oldest_goes_first(lab: Any) -> None:
    """The oldest images go, as many as it takes, and no more."""
    manager = lab.holding(13, free=("cat", "owl", "dog"))
    ana = lab.request("ana", lab.image(2, "bird", mask=(True,) * 5))
    expect(manager.can_allocate(ana, 0, 99, 0), True, at="5 rows; cat 4, owl 3 and dog 6 may go")
    expect(manager.freed, ["cat", "owl"], at="freed, in order")
    expect(list(manager.freeable), ["dog"], at="freeable")
    expect(manager.cached, {"dog": set()}, at="cached")
    expect((manager.num_free_slots, manager.num_freeable_slots), (7, 13), at="empty, and room")


def test_13_5_no_eviction_that_would_not_suffice(lab: Any) -> None:
    """Zoe needs the dog, so the cat's 4 rows are not enough."""
    manager = lab.holding(10, "dog", free=("cat",))
    expect(ask(lab, manager, "dog"), False, at="6 rows; room for 4")
    wanted = lab.state_of(lab.holding(10, "dog", free=("cat",)))
    expect(lab.state_of(manager), wanted, at="the cache afterwards")


def test_13_5_what_is_promised_needs_room_too(lab: Any) -> None:
    """Images that the same call has chosen before need room, too."""
    manager = lab.holding(10, free=("cat",))
    expect(ask(lab, manager, "owl", promised=8), False, at="3 rows and 8 promised, room for 10")
    expect(ask(lab, manager, "owl", promised=6), True, at="3 rows and 6 promised")
    expect(manager.freed, ["cat"], at="freed: only 6 rows were empty")


def test_13_5_a_mask_makes_an_image_smaller(lab: Any) -> None:
    """Rows count, not positions."""
    manager = lab.holding(3)
    ana = lab.request("ana", lab.image(2, "grid", mask=(True, False, True, False, True)))
    expect(manager.can_allocate(ana, 0, 3, 0), True, at="5 positions, 3 rows, room for 3")


def test_13_5_to_allocate_is_to_need(lab: Any) -> None:
    """To allocate moves both counters, and the request needs the image."""
    manager = lab.holding(10)
    manager.allocate(lab.request("ana", lab.image(2, "cat")), 0)
    expect(manager.cached, {"cat": {"ana"}}, at="who needs the cat")
    expect((manager.num_free_slots, manager.num_freeable_slots), (6, 6), at="empty, and room")
