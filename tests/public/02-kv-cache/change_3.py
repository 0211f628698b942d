"""Change request 3: freed blocks without a hash go to the front of the free queue."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect


def queue_of(pool: Any) -> list[int]:
    return [block.block_id for block in pool.free_block_queue]


def test_change_3_without_a_hash_in_front(kv: Any) -> None:
    """Blocks 1, 2, 3 are held, 2 has a hash; 3, 2, 1 are freed."""
    pool = kv.pool(5)
    one, two, three = pool.get_new_blocks(3)
    pool.cache_full_blocks([two], [b"two"])
    pool.free_blocks([three, two, one])
    expect(queue_of(pool), [3, 1, 4, 5, 2], at="free queue 4, 5; 3, 2, 1 freed, 2 has a hash")


def test_change_3_the_first_is_handed_out_next(kv: Any) -> None:
    """Two calls: those of the second come before those of the first."""
    pool = kv.pool(6)
    one, two, three, four = pool.get_new_blocks(4)
    pool.free_blocks([two, one])
    pool.free_blocks([four, three])
    expect(queue_of(pool), [4, 3, 2, 1, 5, 6], at="2, 1 freed, then 4, 3; none has a hash")


def test_change_3_a_held_block_is_not_freed(kv: Any) -> None:
    """Another request holds block 1."""
    pool = kv.pool(3)
    (one,) = pool.get_new_blocks(1)
    pool.touch([one])
    pool.free_blocks([one])
    expect(queue_of(pool), [2, 3], at="block 1 has two holders, one lets go")
