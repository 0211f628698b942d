"""Change request 1: new requests leave a reserve."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect


def test_change_1_a_newcomer_leaves_the_reserve(kv: Any) -> None:
    """Six blocks, a reserve of two: 4 blocks are given, then a new request is refused a fifth."""
    manager = kv.manager(6)
    manager.reserve = 2
    ana, ben = kv.request("ana", 16, manager), kv.request("ben", [7, 8, 9, 6], manager)
    expect(manager.allocate_slots(ana, 16) is not None, True, at="6 free, ana needs 4")
    expect(manager.allocate_slots(ben, 4) is None, True, at="2 free, ben needs 1, 2 are reserved")
    expect(manager.num_free_blocks, 2, at="after the refusal")


def test_change_1_a_running_request_may_use_the_reserve(kv: Any) -> None:
    """The reserve is for requests in the middle of an answer."""
    manager = kv.manager(6)
    manager.reserve = 2
    ana = kv.request("ana", 20, manager)
    manager.allocate_slots(ana, 16)
    ana.num_computed_tokens = 16
    expect(manager.allocate_slots(ana, 4) is not None, True, at="ana holds 4 blocks and needs one")


def test_change_1_without_a_reserve_as_before(kv: Any) -> None:
    """It is not set: all blocks can be had."""
    manager = kv.manager(4)
    ana = kv.request("ana", 16, manager)
    expect(manager.allocate_slots(ana, 16) is not None, True, at="4 free, 4 needed, no reserve")
