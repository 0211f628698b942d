"""Change request 2: blocks that are found often are given away last."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect


def test_change_2_the_fewest_hits_first(kv: Any) -> None:
    """Free queue 1, 2, 3, 4; block 1 was found twice, block 3 once."""
    pool = kv.pool(4)
    blocks = {block.block_id: block for block in pool.free_block_queue}
    for block_id, hits in ((1, 2), (3, 1)):
        for _ in range(hits):
            pool.touch([blocks[block_id]])
            pool.free_blocks([blocks[block_id]])
    order = [block.block_id for block in pool.free_block_queue]
    given = [block.block_id for block in pool.get_new_blocks(4)]
    expect(given, [2, 4, 3, 1], at=f"free queue {order}; hits: 1 twice, 3 once")


def test_change_2_a_block_that_is_handed_out_has_no_hits(kv: Any) -> None:
    """A block that is handed out has no hits."""
    pool = kv.pool(1)
    (block,) = list(pool.free_block_queue)
    pool.touch([block])
    pool.free_blocks([block])
    pool.get_new_blocks(1)
    expect(block.num_hits, 0, at="touched once, freed, handed out")
