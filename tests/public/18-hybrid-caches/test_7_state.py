"""Task 18.7: the table of a state: nulls, and one block that is overwritten."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect
from mini_vllm.core.cache_groups import GroupSpec


def test_18_7_a_state_is_one_block_however_long(hy: Any) -> None:
    """A prompt of 12 tokens at once: two nulls, and a block for the state behind token 11."""
    manager = hy.manager(hy.STATE)
    expect(hy.ids(manager.add_blocks("ana", 12)), [0, 0, 1], at="appended for 12 tokens")
    expect(hy.ids(manager.req_to_blocks["ana"]), [0, 0, 1], at="ana's table")
    expect(manager.null_block.ref_cnt, 0, at="requests that hold the null block")
    expect(manager.last_state, {}, at="last_state: it was nowhere before")


def test_18_7_it_moves_into_a_new_block(hy: Any) -> None:
    """The old one stays for now: the state is copied from it at the begin of the step."""
    manager = hy.manager(hy.STATE)
    manager.add_blocks("ana", 8)
    expect(hy.ids(manager.add_blocks("ana", 20)), [0, 0, 2], at="appended for 20 tokens after 8")
    expect(hy.ids(manager.req_to_blocks["ana"]), [0, 1, 0, 0, 2], at="ana's table")
    expect(manager.last_state, {"ana": 1}, at="last_state: where the state was before")


def test_18_7_inside_a_block_nothing_changes(hy: Any) -> None:
    """The state is overwritten in place."""
    manager = hy.manager(hy.STATE)
    manager.add_blocks("ana", 5)
    expect(hy.ids(manager.add_blocks("ana", 8)), [], at="appended for 8 tokens after 5")
    expect(manager.last_state, {}, at="last_state")
    expect(len(hy.free(manager)), 11, at="free blocks of 12")


def test_18_7_other_modes_keep_a_state_a_block(hy: Any) -> None:
    """Mode "all": as full layers do."""
    manager = hy.manager(GroupSpec("mamba", 4, mode="all"))
    expect(hy.ids(manager.add_blocks("ana", 12)), [1, 2, 3], at="appended for 12 tokens")
    expect(manager.num_wanted_blocks("ana", 24, [], 12), 3, at="wanted for 24 tokens after 12")


def test_18_7_it_wants_one_block(hy: Any) -> None:
    """However far the table grows; none, if it is long enough."""
    manager = hy.manager(hy.STATE)
    got = [manager.num_wanted_blocks("ana", n, [], 0) for n in (3, 12, 60)]
    expect(got, [1, 1, 1], at="a new request with 3, 12, 60 tokens: blocks wanted")
    hy.seat(manager, "ben", 1, nulls=1)
    got = [manager.num_wanted_blocks("ben", n, [], 5) for n in (6, 8, 9, 40)]
    expect(got, [0, 0, 1, 1], at="a table of 2 blocks, 6, 8, 9, 40 tokens: blocks wanted")


def test_18_7_a_free_hit_uses_up_a_free_block(hy: Any) -> None:
    """One for the hit, one for the state that goes on; a held hit costs nothing."""
    manager = hy.manager(hy.STATE)
    block = manager.pool.blocks[5]
    hits = [manager.null_block, block]
    expect(manager.num_wanted_blocks("ana", 12, hits, 8), 2, at="the hit is free: blocks wanted")
    manager.pool.touch([block])
    expect(manager.num_wanted_blocks("ana", 12, hits, 8), 1, at="the hit is held: blocks wanted")


def test_18_7_a_state_of_this_step_is_not_there_yet(hy: Any) -> None:
    """A twin in the same step waits: it is told that it wants more than the pool has."""
    manager = hy.manager(hy.STATE)
    block = manager.pool.blocks[5]
    manager.pool.cache_full_blocks([block], [b"new"])
    manager.published.add(b"new")
    hits = [manager.null_block, block]
    wanted = manager.num_wanted_blocks("ana", 12, hits, 8)
    assert wanted > 12, f"blocks wanted: {wanted}; the pool has 12, and ana must not get them"
    manager.step_planned()
    expect(manager.num_wanted_blocks("ana", 12, hits, 8), 2, at="one step later: blocks wanted")


def test_18_7_the_old_block_goes_two_steps_later(hy: Any) -> None:
    """Not while the copy may still be made: only when the computed tokens end in a later block."""
    manager = hy.manager(hy.STATE)
    manager.add_blocks("ana", 4)
    manager.add_blocks("ana", 8)
    seen = []
    for computed in (4, 8):
        manager.release_skipped("ana", computed)
        seen.append(hy.ids(manager.req_to_blocks["ana"]))
    at = "the state moved from block 1 to block 2; tables after 4 and after 8 computed tokens"
    expect(seen, [[1, 2], [0, 2]], at=at)
    expect(hy.free(manager)[-1], 1, at="the last in the free queue")
    manager.release_skipped("ana", 9)
    held = [manager.null_block.ref_cnt, manager.pool.blocks[1].ref_cnt]
    expect(held, [0, 0], at="holders of the null block and of block 1: it is freed once")


def test_18_7_the_old_block_goes_also_behind_nulls(hy: Any) -> None:
    """The state jumped over 2 blocks; what stands before it is null long since."""
    manager = hy.manager(hy.STATE)
    manager.add_blocks("ana", 4)
    manager.add_blocks("ana", 16)
    manager.release_skipped("ana", 16)
    expect(hy.ids(manager.req_to_blocks["ana"]), [0, 0, 0, 2], at="ana's table after 16 tokens")


def test_18_7_a_hit_is_the_last_state_that_is_there(hy: Any) -> None:
    """It stands for all tokens before its end, so everything else is null."""
    manager, request = hy.manager(hy.STATE), hy.request("ana", 24)
    hy.file(manager, request, {0: [1, 3]})
    got = [hy.ids(manager.find_hit(request, n, [0], 4)[0]) for n in (24, 16, 15, 7)]
    at = "states at the ends of blocks 1 and 3; at most 24, 16, 15, 7 tokens"
    expect(got, [[0, 0, 0, 2], [0, 0, 0, 2], [0, 1], []], at=at)


def test_18_7_a_hit_ends_at_the_alignment(hy: Any) -> None:
    """Another group has blocks of 8, so a prefix of 12 is of no use; nor has group 2 block 3."""
    manager, request = hy.manager(hy.STATE), hy.request("ana", 24)
    hy.file(manager, request, {0: [1, 2, 3], 2: [1, 2]})
    got = [hy.ids(table) for table in manager.find_hit(request, 12, [0], 8)]
    expect(got, [[0, 1]], at="at most 12 tokens, alignment 8")
    got = [hy.ids(table) for table in manager.find_hit(request, 24, [0, 2], 4)]
    expect(got, [[0, 0, 2], [0, 0, 5]], at="tables of groups 0 and 2: both need the state")
