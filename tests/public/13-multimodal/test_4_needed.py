"""13.4: which requests need an image."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect


def test_13_4_an_unknown_image_is_not_cached(lab: Any) -> None:
    """An image that is not cached is not found, and nothing changes."""
    manager = lab.holding(10)
    yours = manager.check_and_update_cache(lab.request("ana", lab.image(2, "cat")), 0)
    expect(yours, False, at="asked for the cat in an empty cache")
    expect(lab.state_of(manager), lab.state_of(lab.holding(10)), at="the cache afterwards")


def test_13_4_a_request_that_finds_an_image_needs_it(lab: Any) -> None:
    """Two requests need the cat."""
    manager = lab.holding(10, "cat")
    yours = manager.check_and_update_cache(lab.request("ana", lab.image(2, "cat")), 0)
    expect(yours, True, at="asked for the cat, which zoe needs")
    expect(manager.cached["cat"], {"zoe", "ana"}, at="who needs the cat")
    expect(manager.num_freeable_slots, 6, at="room: it was needed before")


def test_13_4_a_found_image_is_no_longer_freeable(lab: Any) -> None:
    """An image leaves `freeable` when a request finds it."""
    manager = lab.holding(10, free=("cat", "dog"))
    one = lab.request("ana", lab.image(0, "owl"), lab.image(4, "dog"))
    expect(
        manager.check_and_update_cache(one, 1),
        True,
        at="asked for the dog, which is cached and which no request needs",
    )
    expect(list(manager.freeable.items()), [("cat", 4)], at="freeable")
    expect(manager.num_freeable_slots, 4, at="num_freeable_slots: the cat could go, the dog not")
    expect(manager.num_free_slots, 0, at="num_free_slots: nothing was evicted")


def test_13_4_the_last_one_makes_room(lab: Any) -> None:
    """An image stays cached when no request needs it."""
    manager = lab.holding(10, "cat")
    ana = lab.request("ana", lab.image(2, "cat"))
    manager.cached["cat"] = {"zoe", "ana"}
    manager.free_encoder_input(lab.request("zoe", lab.image(2, "cat")), 0)
    expect(list(manager.freeable), [], at="freeable while ana needs the cat")
    manager.free_encoder_input(ana, 0)
    wanted = lab.state_of(lab.holding(10, free=("cat",)))
    expect(lab.state_of(manager), wanted, at="after the last one")


def test_13_4_the_youngest_goes_to_the_end(lab: Any) -> None:
    """The image that becomes free last is evicted last."""
    manager = lab.holding(20, "cat", free=("dog",))
    manager.free_encoder_input(lab.request("zoe", lab.image(2, "cat")), 0)
    expect(list(manager.freeable.items()), [("dog", 6), ("cat", 4)], at="freeable, oldest first")


def test_13_4_asking_twice_changes_nothing(lab: Any) -> None:
    """To free a free image, a foreign one, or one that is not there changes nothing."""
    manager = lab.holding(20, "dog", free=("cat",))
    ana = lab.request("ana", lab.image(2, "cat"), lab.image(8, "owl"), lab.image(20, "dog"))
    for index in (0, 1, 2):
        manager.free_encoder_input(ana, index)
    wanted = lab.state_of(lab.holding(20, "dog", free=("cat",)))
    expect(lab.state_of(manager), wanted, at="after freeing what ana does not hold")
