"""Change request 2, over random histories."""

from __future__ import annotations

from random import Random

import pytest

from mini_vllm.core.block_pool import BlockPool


@pytest.mark.parametrize("seed", range(40))
def test_change_2_the_order(seed: int) -> None:
    rng = Random(seed)
    pool = BlockPool(9)
    blocks = {block.block_id: block for block in pool.free_block_queue}
    hits = dict.fromkeys(blocks, 0)
    for _ in range(rng.randint(0, 15)):
        block_id = rng.choice(list(blocks))
        pool.touch([blocks[block_id]])
        pool.free_blocks([blocks[block_id]])
        hits[block_id] += 1
    queue = [block.block_id for block in pool.free_block_queue]
    count = rng.randint(0, 8)
    expected = sorted(queue, key=lambda block_id: hits[block_id])[:count]
    assert [block.block_id for block in pool.get_new_blocks(count)] == expected
    assert all(blocks[block_id].num_hits == 0 for block_id in expected)  # type: ignore[attr-defined]
    assert all(blocks[block_id].ref_cnt == 1 for block_id in expected)
    assert pool.num_free_blocks == 8 - count
    assert [b.block_id for b in pool.free_block_queue] == [b for b in queue if b not in expected]


def test_change_2_a_refusal_changes_nothing() -> None:
    pool = BlockPool(4)
    before = [block.block_id for block in pool.free_block_queue]
    with pytest.raises(ValueError):
        pool.get_new_blocks(4)
    assert [block.block_id for block in pool.free_block_queue] == before
