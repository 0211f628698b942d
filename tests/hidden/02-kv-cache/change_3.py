"""Change request 3, over random pools: the queue's order, and nothing is lost or doubled."""

from __future__ import annotations

from random import Random

import pytest

from mini_vllm.core.block_pool import BlockPool, KVCacheBlock


@pytest.mark.parametrize("seed", range(40))
def test_change_3_the_order_of_the_queue(seed: int) -> None:
    rng = Random(seed)
    pool = BlockPool(rng.randint(2, 12))
    expected = [block.block_id for block in pool.free_block_queue]
    held: list[KVCacheBlock] = []
    for step in range(12):
        count = rng.randint(0, len(expected))
        for block in pool.get_new_blocks(count):
            expected.remove(block.block_id)
            if rng.random() < 0.5:
                pool.cache_full_blocks([block], [f"{seed}/{step}/{block.block_id}".encode()])
            if rng.random() < 0.2:
                pool.touch([block])
            held.append(block)
        rng.shuffle(held)
        freed = [held.pop() for _ in range(rng.randint(0, len(held)))]
        gone = [block for block in freed if block.ref_cnt == 1]
        held += [block for block in freed if block.ref_cnt > 1]
        front = [block.block_id for block in gone if block.block_hash is None]
        back = [block.block_id for block in gone if block.block_hash is not None]
        pool.free_blocks(iter(freed))
        expected = [*front, *expected, *back]
        assert [block.block_id for block in pool.free_block_queue] == expected
        pool.check_integrity()
