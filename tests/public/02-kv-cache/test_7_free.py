"""Task 02.7: a request gives its blocks back, or takes back what it promised to fill."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.testing import expect
from labkit.trace import golden


def test_02_7_the_tail_is_freed_first(kv: Any) -> None:
    """What is freed first is reused first, and prompts share beginnings, not ends."""
    manager = kv.manager()
    ana = kv.request("ana", 12, manager)
    kv.admit(manager, ana)
    manager.free(ana)
    at = "7 usable blocks; ana's table 1, 2, 3 is freed: the free queue"
    expect(kv.free(manager), [4, 5, 6, 7, 3, 2, 1], at=at)


def test_02_7_the_beginning_is_found_longest(kv: Any) -> None:
    """Two of ana's three blocks are needed for another request; her first one survives."""
    manager = kv.manager(3)
    ana = kv.request("ana", 12, manager)
    kv.admit(manager, ana)
    manager.free(ana)
    kv.admit(manager, kv.request("big", kv.others(8), manager))
    blocks, num_tokens = manager.get_computed_blocks(kv.request("ben", 12, manager))
    at = "3 usable blocks; ana's 12 tokens were freed, then 2 blocks reused: what ben finds"
    expect((blocks.get_block_ids(), num_tokens), ([1], 4), at=at)


def test_02_7_nothing_of_the_request_stays_behind(kv: Any) -> None:
    """Ana may come back under her name, and publishes her blocks anew."""
    manager = kv.manager()
    ana = kv.request("ana", 12, manager)
    kv.admit(manager, ana)
    manager.free(ana)
    left = (manager.req_to_blocks, manager.num_cached_blocks)
    expect(left, ({}, {}), at="req_to_blocks and num_cached_blocks after ana is gone")
    again = kv.request("ana", kv.others(8), manager)
    kv.admit(manager, again)
    expect(manager.num_cached_blocks["ana"], 2, at="ana comes back with another prompt of 8")
    manager.check_integrity([again])


def test_02_7_a_request_without_blocks_is_left_as_it_is(kv: Any) -> None:
    """An abort may come before the first block, or twice."""
    manager = kv.manager()
    ana = kv.request("ana", 8, manager)
    manager.free(ana)
    kv.admit(manager, ana)
    manager.free(ana)
    manager.free(ana)
    expect(kv.free(manager), [3, 4, 5, 6, 7, 2, 1], at="ana is freed three times: the free queue")


def test_02_7_shared_blocks_stay_with_the_others(kv: Any) -> None:
    """Ben hits two of ana's blocks; ana leaves, ben reads on."""
    manager = kv.manager()
    ana, ben = kv.request("ana", 12, manager), kv.request("ben", 9, manager)
    kv.admit(manager, ana)
    kv.admit(manager, ben)
    manager.free(ana)
    expect(kv.free(manager), [5, 6, 7, 3], at="ana held 1 2 3, ben holds 1 2 4; ana leaves")
    expect(kv.refs(manager), [1, 1, 0, 1, 0, 0, 0], at="holders of blocks 1 to 7")
    manager.check_integrity([ben])


def test_02_7_a_failed_step_takes_its_promises_back(kv: Any) -> None:
    """12 tokens were planned and published, 6 are valid: block 0 stays, blocks 1 and 2 do not."""
    manager = kv.manager()
    ana = kv.request("ana", 13, manager)
    kv.admit(manager, ana, 12)
    manager.uncache_blocks(ana, 6)
    found = manager.get_computed_blocks(kv.request("ben", 13, manager))[1]
    expect(found, 4, at="6 of 12 planned tokens are valid, 4 to a block: tokens that ben finds")
    expect(manager.num_cached_blocks["ana"], 1, at="published blocks of ana")
    expect(manager.get_block_ids("ana"), [1, 2, 3], at="ana's table: she keeps her blocks")
    expect(kv.free(manager), [4, 5, 6, 7], at="the free queue: ana still holds 1, 2 and 3")
    manager.cache_blocks(ana, 3)
    found = manager.get_computed_blocks(kv.request("ben", 13, manager))[1]
    expect(found, 12, at="the blocks are computed after all and published again")


def test_02_7_uncaching_never_publishes(kv: Any) -> None:
    """More valid tokens than published ones change nothing; an unknown request neither."""
    manager = kv.manager()
    ana = kv.request("ana", 12, manager)
    kv.admit(manager, ana, 5)
    manager.uncache_blocks(ana, 12)
    at = "ana published 1 block and 12 tokens are said to be valid: published blocks"
    expect(manager.num_cached_blocks["ana"], 1, at=at)
    manager.uncache_blocks(kv.request("nobody", 8, manager), 0)
    expect(manager.num_cached_blocks, {"ana": 1}, at="`nobody` holds no blocks")


@pytest.mark.parametrize("profile", ["prefix", "pressure", "priority"])
def test_02_7_real_vllm_hands_out_the_same_blocks(profile: str) -> None:
    """Your three modules, under this course's scheduler, against recordings of vLLM 0.22.1."""
    for recorded in golden.select(profile, limit=6):
        difference = golden.mismatch(recorded)
        assert difference is None, difference
