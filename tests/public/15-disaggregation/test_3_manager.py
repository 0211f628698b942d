"""Task 15.3: blocks that are being stored."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect


def test_15_3_three_answers(lab: Any) -> None:
    """A block is there, or not, or not yet."""
    manager = lab.tier(4, "a")
    manager.policy.insert(lab.key("w"), type(manager.policy.get(lab.key("a")))(9))
    answers = [manager.lookup(lab.key(name)) for name in "azw"]
    expect(answers, [True, False, None], at="a is ready, z unknown, w being written")


def test_15_3_new_keys_get_places_and_are_not_found_yet(lab: Any) -> None:
    """What is being written has a place, and is not ready."""
    manager = lab.tier(4, "a")
    place = manager.prepare_store([lab.key("a"), lab.key("b"), lab.key("c")])
    expect(lab.names(place.keys_to_store), "bc", at="a is known already")
    expect(len(set(place.block_ids)), 2, at="different places")
    block = manager.policy.get(lab.key("b"))
    expect((block.block_id, block.ref_cnt), (place.block_ids[0], -1), at="b, being written")


def test_15_3_as_many_go_as_are_missing(lab: Any) -> None:
    """Free places are used first, and no more are evicted than that leaves missing."""
    manager = lab.tier(3, "ab")
    place = manager.prepare_store([lab.key("c"), lab.key("d")])
    expect(lab.names(place.evicted_keys), "a", at="3 places, 2 taken, 2 wanted")


def test_15_3_what_was_asked_for_stays(lab: Any) -> None:
    """A key of the call is never evicted for another key of the call."""
    manager = lab.tier(2, "ab")
    place = manager.prepare_store([lab.key("a"), lab.key("c")])
    expect(lab.names(place.evicted_keys), "b", at="a is older, and asked for")


def test_15_3_all_or_nothing(lab: Any) -> None:
    """If there cannot be room for all, nothing changes."""
    manager = lab.tier(2, "ab")
    manager.prepare_load([lab.key("a")])
    expect(manager.prepare_store([lab.key("c"), lab.key("d")]), None, at="one place can be had")
    expect([manager.lookup(lab.key(n)) for n in "abcd"], [True, True, False, False], at="after it")


def test_15_3_a_store_ends_well_or_not(lab: Any) -> None:
    """Written: it is found. Failed: it is gone, and its place is free. Others are left alone."""
    manager = lab.tier(3, "a")
    manager.prepare_store([lab.key("b"), lab.key("c")])
    manager.complete_store([lab.key("b"), lab.key("a"), lab.key("z")])
    expect(manager.lookup(lab.key("b")), True, at="b was written")
    manager.complete_store([lab.key("c"), lab.key("a")], success=False)
    expect([manager.lookup(lab.key(n)) for n in "ac"], [True, False], at="c has failed, a is ready")
    expect(len(manager.free_ids), 1, at="c's place")


def test_15_3_a_key_may_come_twice(lab: Any) -> None:
    """It is one block: it has one place, and is written once."""
    manager = lab.tier(3, "a")
    place = manager.prepare_store([lab.key(name) for name in "bacb"])
    expect(lab.names(place.keys_to_store), "bc", at="b, a, c, b; a is known already")
    expect(len(set(place.block_ids)), 2, at="different places")
    manager.check_integrity()


def test_15_3_nothing_to_store_is_no_refusal(lab: Any) -> None:
    """All is known: an empty output. None would say that there is no room."""
    place = lab.tier(1, "a").prepare_store([lab.key("a")])
    expect(place is None, False, at="prepare_store is None")
    expect((place.keys_to_store, place.evicted_keys), ([], []), at="to store, and evicted")


def test_15_3_a_reader_goes_on_reading(lab: Any) -> None:
    """A block that is read is not being written: told of it, the tier leaves its reader alone."""
    manager = lab.tier(2, "ab")
    manager.prepare_load([lab.key("a")])
    for success in (True, False):
        manager.complete_store([lab.key("a")], success=success)
        at = f"readers of a, after complete_store(success={success})"
        expect(manager.policy.get(lab.key("a")).ref_cnt, 1, at=at)


def test_15_3_a_store_makes_no_block_younger(lab: Any) -> None:
    """a is known already and left out: it stays the oldest, and goes for c."""
    manager = lab.tier(2, "ab")
    manager.prepare_store([lab.key("a")])
    place = manager.prepare_store([lab.key("c")])
    expect(lab.names(place.evicted_keys), "a", at="a, b are there; a, and then c are to be stored")
