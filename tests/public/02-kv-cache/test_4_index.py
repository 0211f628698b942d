"""Task 02.4: full blocks are filed under the name of their content."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect


def test_02_4_a_filed_block_is_found(kv: Any) -> None:
    """The i-th block by the i-th hash; an unknown hash finds nothing."""
    pool = kv.pool(4)
    blocks = pool.get_new_blocks(2)
    pool.cache_full_blocks(blocks, [b"a", b"b"])
    found = [pool.get_cached_block(name) for name in (b"a", b"b")]
    expect(kv.ids(b for b in found if b), [1, 2], at="blocks 1, 2 were filed under a, b")
    expect([b.block_hash for b in blocks], [b"a", b"b"], at="what the blocks say they hold")
    expect(pool.get_cached_block(b"c"), None, at="a hash that was not filed")
    pool.check_integrity()


def test_02_4_equal_blocks_are_all_kept(kv: Any) -> None:
    """Ana and ben filled equal blocks side by side; both tables stay as they are."""
    pool = kv.pool(4)
    blocks = pool.get_new_blocks(2)
    for block in blocks:
        pool.cache_full_blocks([block], [b"hello"])
    at = "blocks 1 and then 2 were filed under the same hash"
    expect(list(pool.cached_blocks[b"hello"]), [1, 2], at=at)
    found = pool.get_cached_block(b"hello")
    assert found is blocks[0], f"{at}; the oldest is block 1, you return {found}"


def test_02_4_a_lost_twin_leaves_the_other_findable(kv: Any) -> None:
    """Block 1 is given away; the content is still there, in block 2."""
    pool = kv.pool(2)
    one, two = pool.get_new_blocks(2)
    for block in (one, two):
        pool.cache_full_blocks([block], [b"hello"])
    pool.free_blocks([one])
    pool.get_new_blocks(1)
    found = pool.get_cached_block(b"hello")
    assert found is two, f"block 2 holds the same content as block 1 did; you return {found}"
    pool.check_integrity()


def test_02_4_a_free_block_is_found_until_it_is_given_away(kv: Any) -> None:
    """The cache consists of free blocks that were not needed yet."""
    pool = kv.pool(3)
    blocks = pool.get_new_blocks(2)
    pool.cache_full_blocks(blocks, [b"a", b"b"])
    pool.free_blocks(reversed(blocks))
    assert pool.get_cached_block(b"a") is blocks[0], "block 1 is free and still holds a"
    pool.get_new_blocks(2)
    expect(pool.get_cached_block(b"b"), None, at="free: 3 2 1; two were given away: b's block 2")
    assert pool.get_cached_block(b"a") is blocks[0], "a's block 1 was not given away"


def test_02_4_looking_changes_nothing(kv: Any) -> None:
    """A lookup makes no entry, counts no holder and moves no block."""
    pool = kv.pool(3)
    blocks = pool.get_new_blocks(1)
    pool.cache_full_blocks(blocks, [b"a"])
    pool.free_blocks(blocks)
    pool.get_cached_block(b"a")
    pool.get_cached_block(b"unknown")
    expect(list(pool.cached_blocks), [b"a"], at="names in cached_blocks after two lookups")
    expect(kv.refs(pool), [0, 0, 0], at="holders of blocks 1 to 3 after two lookups")
    expect(kv.free(pool), [2, 3, 1], at="the free queue after two lookups")
