"""Task 18.3: blocks that no later token reads go back, and hits whose front is null come in."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect


def test_18_3_a_window_counts_its_own_token(hy: Any) -> None:
    """With a window of 4, token 7 reads 4 to 7: 4 tokens are skipped before it."""
    manager = hy.manager(hy.window(4))
    got = [manager.num_skipped_tokens(n) for n in (0, 2, 3, 4, 7, 40)]
    expect(got, [0, 0, 0, 1, 4, 37], at="window 4, after 0, 2, 3, 4, 7, 40 computed tokens")


def test_18_3_a_chunk_ends_and_all_of_it_goes(hy: Any) -> None:
    """Token 7 reads its chunk, 4 to 7. Token 8 begins one: nothing before it is read."""
    manager = hy.manager(hy.local(4))
    got = [manager.num_skipped_tokens(n) for n in (0, 3, 4, 7, 8, 41)]
    expect(got, [0, 0, 4, 4, 8, 40], at="chunks of 4, after 0, 3, 4, 7, 8, 41 computed tokens")


def test_18_3_only_whole_blocks_go(hy: Any) -> None:
    """Window 5: after 7 tokens 3 are skipped, and no block; after 8, 4 and one."""
    manager = hy.manager(hy.window(5))
    hy.seat(manager, "ana", 3)
    seen = []
    for computed in (7, 8):
        manager.release_skipped("ana", computed)
        seen.append(hy.ids(manager.req_to_blocks["ana"]))
    expect(seen, [[1, 2, 3], [0, 2, 3]], at="ana's table of 3 blocks, after 7 and 8 tokens")


def test_18_3_the_newest_is_freed_first(hy: Any) -> None:
    """Blocks are taken from the queue's front. The oldest of those that go lasts longest."""
    manager = hy.manager(hy.window(5), blocks=5)
    hy.seat(manager, "ana", 5)
    manager.release_skipped("ana", 17)
    expect(hy.ids(manager.req_to_blocks["ana"]), [0, 0, 0, 4, 5], at="table after 17 tokens")
    expect(hy.free(manager), [3, 2, 1], at="the free queue, next to be given out first")


def test_18_3_what_is_null_is_not_freed_again(hy: Any) -> None:
    """The null block is in many tables and belongs to no request. A table may end early, too."""
    manager = hy.manager(hy.window(5), blocks=5)
    hy.seat(manager, "ana", 3, nulls=2)
    manager.release_skipped("ana", 13)
    expect(hy.ids(manager.req_to_blocks["ana"]), [0, 0, 1, 2, 3], at="13 tokens: 9 skipped")
    manager.release_skipped("ana", 60)
    expect(hy.ids(manager.req_to_blocks["ana"]), [0] * 5, at="60 tokens, a table of 5 blocks")
    expect(manager.null_block.ref_cnt, 0, at="requests that hold the null block")
    manager.release_skipped("unknown", 60)
    expect(hy.free(manager), [4, 5, 3, 2, 1], at="the free queue at the end")


def test_18_3_a_long_table_costs_no_more(hy: Any) -> None:
    """In each step at most what goes is looked at, not all that went before."""
    from labkit.inside.cost import steps

    costs = []
    for nulls in (10, 1000):
        manager = hy.manager(hy.window(5), blocks=4)
        hy.seat(manager, "ana", 4, nulls=nulls)
        costs.append(steps(manager.release_skipped, "ana", 4 * nulls + 8))
    assert costs[1] < 1.5 * costs[0], (
        f"a table that begins with 10 null blocks costs {costs[0]} steps, one with 1000 "
        f"{costs[1]}; stop at the first null block, for what stands before it went earlier"
    )


def test_18_3_a_block_that_goes_keeps_its_name(hy: Any) -> None:
    """A later request with the same beginning may find it, as long as the block is not taken."""
    manager, request = hy.manager(hy.window(5)), hy.request("ana", 12)
    table = hy.seat(manager, "ana", 3)
    manager.pool.cache_full_blocks(table[:1], [b"first"])
    manager.release_skipped("ana", 8)
    found = manager.pool.get_cached_block(b"first")
    expect(found is table[0], True, at=f"the first block of {request.request_id} is still found")


def test_18_3_hits_are_held(hy: Any) -> None:
    """A hit may be free: holding it takes it out of the free queue."""
    manager = hy.manager(hy.FULL, blocks=4)
    hits = [manager.pool.blocks[2], manager.pool.blocks[3]]
    manager.add_hits("ana", hits, 8)
    expect(hy.ids(manager.req_to_blocks["ana"]), [2, 3], at="ana's table: her two hits")
    expect([block.ref_cnt for block in hits], [1, 1], at="holders of blocks 2 and 3")
    expect(hy.free(manager), [1, 4], at="the free queue")
    expect(manager.num_cached_blocks["ana"], 2, at="num_cached_blocks of ana")


def test_18_3_hits_that_are_not_read_become_null(hy: Any) -> None:
    """Window 5, a hit of 12 tokens: token 12 reads 8 to 12, so only the third block is held."""
    manager = hy.manager(hy.window(5), blocks=4)
    hits = manager.pool.blocks[1:4]
    manager.add_hits("ana", hits, 12)
    expect(hy.ids(manager.req_to_blocks["ana"]), [0, 0, 3], at="ana's table")
    expect([block.ref_cnt for block in hits], [0, 0, 1], at="holders of blocks 1 to 3")
    expect(manager.num_cached_blocks["ana"], 3, at="num_cached_blocks of ana: nulls count")


def test_18_3_null_hits_are_not_touched(hy: Any) -> None:
    """A hit may begin with null blocks, and not all of those are skipped."""
    manager = hy.manager(hy.window(9), blocks=4)
    null, block = manager.null_block, manager.pool.blocks[2]
    manager.add_hits("ana", [null, null, block], 12)
    expect(hy.ids(manager.req_to_blocks["ana"]), [0, 0, 2], at="window 9: 4 of 12 are skipped")
    expect((null.ref_cnt, block.ref_cnt), (0, 1), at="holders of the null block and of block 2")


def test_18_3_a_request_that_runs_gets_no_hits(hy: Any) -> None:
    """Its table is there already; a second lookup must not lengthen it."""
    manager = hy.manager(hy.FULL, blocks=4)
    hy.seat(manager, "ana", 2)
    manager.add_hits("ana", [manager.pool.blocks[3]], 4)
    expect(hy.ids(manager.req_to_blocks["ana"]), [1, 2], at="ana's table stays as it was")
    expect(manager.pool.blocks[3].ref_cnt, 0, at="holders of block 3")
