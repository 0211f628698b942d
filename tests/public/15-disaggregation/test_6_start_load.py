"""Task 15.6: take blocks, and start a load."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect


def test_15_6_it_waits_with_its_blocks(lab: Any) -> None:
    """Blocks for local and external tokens, none for others; the count is set; it waits."""
    engine = lab.Engine({"ada": 8})
    ada = engine.add("ada", 11)
    scheduled = engine.step()
    expect(ada.status, lab.WAITS, at="after the step")
    expect(len(engine.blocks("ada")), 2, at="8 tokens in blocks of 4")
    expect(ada.num_computed_tokens, 8, at="after the step")
    expect(scheduled, {}, at="nothing is computed for it")
    expect(engine.scheduler.transfers.loading, {"ada"}, at="on its way")


def test_15_6_it_takes_no_budget_and_no_row(lab: Any) -> None:
    """Others run as if it were not there."""
    engine = lab.Engine({"ada": 8}, max_num_seqs=1, max_num_batched_tokens=5)
    engine.add("ada", 11)
    engine.add("ben", 5, first=50)
    expect(engine.step(), {"ben": 5}, at="one row, 5 tokens of budget")


def test_15_6_blocks_are_not_found_before_they_arrive(lab: Any) -> None:
    """Its blocks are not findable before they have arrived."""
    engine = lab.Engine({"ada": 8})
    ada = engine.add("ada", 11)
    engine.step()
    pool = engine.scheduler.kv_cache_manager.block_pool
    expect(pool.get_cached_block(ada.block_hashes[0]), None, at="ada's first block, on its way")


def test_15_6_local_hits_come_first(lab: Any) -> None:
    """What the cache has is touched, and only the rest is loaded."""
    engine = lab.Engine({"ben": 12})
    engine.add("ada", 5)
    engine.step()
    ben = engine.add("ben", 14)
    engine.step()
    expect(engine.blocks("ben")[0], engine.blocks("ada")[0], at="ben's first block")
    expect(ben.num_computed_tokens, 12, at="4 here, 8 on their way")
    expect(ben.num_cached_tokens, 12, at="tokens it need not compute")


def test_15_6_no_blocks_no_change(lab: Any) -> None:
    """If there are too few blocks, it stays where it was, and no request behind it overtakes."""
    engine = lab.Engine({"ada": 12}, num_blocks=6)
    engine.add("ben", 11, first=50)
    engine.step()
    ada = engine.add("ada", 15)
    engine.add("cyd", 4, first=90)
    expect(engine.step(), {"ben": 1}, at="ben holds 3 of 5 blocks, ada needs more than 2")
    expect((ada.status.name, ada.num_computed_tokens), ("WAITING", 0), at="ada")
    expect(engine.scheduler.transfers.loading, set(), at="nothing is on its way")


def test_15_6_the_order_of_the_line_stays(lab: Any) -> None:
    """Loading requests stand among the skipped ones, in order of arrival."""
    engine = lab.Engine({"ada": 8, "cyd": 8}, max_num_batched_tokens=64)
    for number, name in enumerate(("ada", "ben", "cyd")):
        engine.add(name, 11, first=100 * number)
    engine.step()
    line = [request.request_id for request in engine.scheduler.skipped_waiting]
    expect(line, ["ada", "cyd"], at="ada and cyd load, ben runs")


def test_15_6_a_whole_prompt_is_on_its_way(lab: Any) -> None:
    """8 tokens, and 8 are offered: all count while they are loaded. Task 7 takes one back."""
    engine = lab.Engine({"ada": 8})
    ada = engine.add("ada", 8)
    engine.step()
    expect(ada.num_computed_tokens, 8, at="a prompt of 8 tokens, of which 8 are loaded")
    expect(ada.num_cached_tokens, 8, at="tokens that came from elsewhere")
