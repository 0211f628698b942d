"""Task 18.6: in which order blocks come and go, and what becomes findable."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect


def pair(hy: Any, wanted: int = 2, blocks: int = 12, caching: bool = True) -> tuple[Any, list[Any]]:
    """A manager of two groups whose stand-ins write into one log."""
    kinds = [hy.Kind("g0", wanted=wanted), hy.Kind("g1", wanted=wanted)]
    kinds[1].log = kinds[0].log
    manager = hy.of_kinds([hy.FULL, hy.window(5)], kinds, blocks, caching)
    return manager, kinds[0].log


def calls(log: list[Any]) -> list[str]:
    """ "g0 add_hits" for each call."""
    return [f"{entry[0]} {entry[1]}" for entry in log]


def test_18_6_give_back_count_hold_add(hy: Any) -> None:
    """All groups give back before any is counted; all hits are held before any block is taken."""
    manager, log = pair(hy)
    hits = [hy.Kind("x", accepts=[8]).find_hit(None, 8, [group], 4)[0] for group in (0, 1)]
    got = manager._give_blocks("ana", 12, hits, 8, 0)
    want = ["release_skipped", "num_wanted_blocks", "add_hits", "add_blocks"]
    expect(calls(log), [f"g{g} {name}" for name in want for g in (0, 1)], at="calls, in order")
    expect([hy.ids(blocks) for blocks in got], [[12], [12]], at="what the groups appended")
    own = [("g0", "add_hits", "ana", [100, 101], 8), ("g1", "add_hits", "ana", [200, 201], 8)]
    expect(log[4:6], own, at="each group gets its own hits")
    expect(log[6], ("g0", "add_blocks", "ana", 12), at="g0 is extended to 12 slots")
    expect(log[0], ("g0", "release_skipped", "ana", 8), at="what g0 is told of computed tokens")


def test_18_6_none_comes_after_the_giving_back(hy: Any) -> None:
    """2 + 2 blocks are wanted, 3 are free. What is not read any more has gone all the same."""
    manager, log = pair(hy, blocks=3)
    got = manager._give_blocks("ana", 12, [[], []], 8, 0)
    expect(got, None, at="4 blocks wanted, 3 free")
    expect(calls(log)[:2], ["g0 release_skipped", "g1 release_skipped"], at="the first calls")
    at = "no hit is held and no block is taken"
    expect([name for name in calls(log) if " add_" in name], [], at=at)


def test_18_6_just_enough_is_enough(hy: Any) -> None:
    """4 blocks are wanted and 4 are free. With one reserved they are too few."""
    manager, _ = pair(hy, blocks=4)
    got = manager._give_blocks("ana", 12, [[], []], 8, 0)
    assert got is not None, "4 blocks wanted, 4 free: the answer is not None"
    expect(manager._give_blocks("ben", 12, [[], []], 8, 1), None, at="1 of 4 blocks is reserved")


def test_18_6_nothing_new_is_not_none(hy: Any) -> None:
    """Inside a block no group appends anything: an empty list each."""
    manager, _ = pair(hy, wanted=0)
    for kind in manager.managers:
        kind.add_blocks = lambda request_id, num_tokens: []
    got = manager._give_blocks("ana", 7, [[], []], 6, 0)
    assert got is not None, "None means: there is no room. Here none is wanted"
    expect([hy.ids(blocks) for blocks in got], [[], []], at="7 tokens after 6, blocks of 4")


def test_18_6_a_request_without_hits_begins_none(hy: Any) -> None:
    """A running request has its table; add_hits is for those that come in with hits."""
    manager, log = pair(hy)
    manager._give_blocks("ana", 12, [[], []], 8, 0)
    expect([name for name in calls(log) if "add_hits" in name], [], at="calls of add_hits")


def test_18_6_blocks_that_were_given_back_serve_the_request(hy: Any) -> None:
    """A window over real blocks: the pool is empty until the window lets one go."""
    manager = hy.scheduler(hy.FULL, hy.window(5), blocks=6).kv_cache_manager
    request = hy.request("ana", 30)
    first = manager._give_blocks("ana", 12, [[], []], 0, 0)
    expect([hy.ids(own) for own in first], [[1, 2, 3], [4, 5, 6]], at="12 tokens, 6 blocks")
    got = manager._give_blocks("ana", 16, [[], []], 12, 0)
    assert got is not None, "after 12 tokens the window lets 2 blocks go, and 2 are needed"
    at = f"tables of {request.request_id}: the window's first two blocks serve again"
    expect(manager.get_group_block_ids("ana"), [[1, 2, 3, 5], [0, 0, 6, 4]], at=at)


def test_18_6_only_whole_multiples_become_findable(hy: Any) -> None:
    """Blocks of 4 and 6: prefixes are looked for at multiples of 12, so 30 tokens publish 24."""
    kinds = [hy.Kind("g0"), hy.Kind("g1", 6)]
    kinds[1].log = kinds[0].log
    manager = hy.of_kinds([hy.FULL, hy.window(5, block_size=6)], kinds)
    manager.cache_tokens(hy.request("ana", 30), 30)
    at = "30 tokens, blocks of 4 and 6: what the groups publish, and the alignment"
    want = [("g0", "publish", "ana", 24, 12), ("g1", "publish", "ana", 24, 12)]
    expect(sorted(kinds[0].log), want, at=at)


def test_18_6_without_a_prefix_cache_nothing_is_findable(hy: Any) -> None:
    """enable_caching is False: no group publishes."""
    manager, log = pair(hy, caching=False)
    manager.cache_tokens(hy.request("ana", 30), 30)
    expect(log, [], at="calls of publish")
