"""Task 02.3: the pool gives blocks, counts their holders, and takes them back."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.testing import expect


def test_02_3_new_blocks_come_from_the_head(kv: Any) -> None:
    """The least recently used blocks in order, each with one holder; block 0 is never given out."""
    pool = kv.pool(7)
    blocks = pool.get_new_blocks(3)
    expect(kv.ids(blocks), [1, 2, 3], at="3 of the 7 blocks 1 to 7 are wanted")
    expect(kv.refs(pool), [1, 1, 1, 0, 0, 0, 0], at="holders of blocks 1 to 7")
    expect(kv.free(pool), [4, 5, 6, 7], at="the free queue afterwards")
    expect(kv.ids(pool.get_new_blocks(0)), [], at="0 blocks are wanted")


def test_02_3_all_or_nothing(kv: Any) -> None:
    """Too few free blocks: ValueError, and not a single one is taken."""
    pool = kv.pool(3)
    with pytest.raises(ValueError):
        pool.get_new_blocks(4)
    expect(kv.free(pool), [1, 2, 3], at="4 blocks were wanted of 3: the free queue")
    expect(kv.refs(pool), [0, 0, 0], at="4 blocks were wanted of 3: holders of blocks 1 to 3")


def test_02_3_what_is_given_away_is_forgotten(kv: Any) -> None:
    """A reused block must not be found under its old name: it will hold other tokens."""
    pool = kv.pool(3)
    for block, name in zip(pool.blocks[1:], (b"a", b"b", b"c"), strict=True):
        kv.file(pool, block, name)
    blocks = pool.get_new_blocks(2)
    expect([b.block_hash for b in blocks], [None, None], at="hashes of the blocks given out")
    at = "names in cached_blocks; blocks 1 to 3 held a, b, c, and 1 and 2 were given out"
    expect(list(pool.cached_blocks), [b"c"], at=at)


def test_02_3_evict_forgets_one_block_and_leaves_its_twin(kv: Any) -> None:
    """Only this block's entry goes; the last one takes the name with it."""
    pool = kv.pool(3)
    one, two, plain = pool.get_new_blocks(3)
    kv.file(pool, one, b"hello")
    kv.file(pool, two, b"hello")
    pool.evict(one)
    expect(one.block_hash, None, at="the hash of block 1 after evict")
    expect(list(pool.cached_blocks.get(b"hello", {})), [2], at="who is left under its name")
    pool.evict(plain)
    expect(one.ref_cnt, 1, at="holders of block 1: evict takes a name, not the block")
    pool.evict(two)
    expect(pool.cached_blocks, {}, at="both twins are forgotten: no empty entry stays behind")


def test_02_3_touch_counts_one_more_holder(kv: Any) -> None:
    """A block in use only gets one more holder; the free queue is not concerned."""
    pool = kv.pool(4)
    blocks = pool.get_new_blocks(2)
    pool.touch(blocks)
    pool.touch(blocks[:1])
    expect(kv.refs(pool), [3, 2, 0, 0], at="holders; blocks 1, 2 were given out, then touched")
    expect(kv.free(pool), [3, 4], at="the free queue")


def test_02_3_touch_brings_a_free_block_back(kv: Any) -> None:
    """A hit on a free block leaves the queue, from the middle, and keeps its name."""
    pool = kv.pool(4)
    kv.file(pool, pool.blocks[2], b"hello")
    pool.touch([pool.blocks[2]])
    expect(kv.free(pool), [1, 3, 4], at="free: 1 2 3 4, and a request finds block 2")
    expect(pool.blocks[2].ref_cnt, 1, at="holders of block 2")
    expect(pool.blocks[2].block_hash, b"hello", at="the name of block 2: it was just found by it")
    expect(list(pool.cached_blocks), [b"hello"], at="names in cached_blocks")


def test_02_3_freed_blocks_queue_up_in_the_order_given(kv: Any) -> None:
    """The first of them will be reused first. Any iterable will do."""
    pool = kv.pool(7)
    blocks = pool.get_new_blocks(3)
    pool.free_blocks(reversed(blocks))
    at = "blocks 1, 2, 3 were taken and freed in the order 3, 2, 1"
    expect(kv.free(pool), [4, 5, 6, 7, 3, 2, 1], at=at)
    expect(kv.refs(pool), [0] * 7, at="holders of blocks 1 to 7")


def test_02_3_a_shared_block_is_free_when_its_last_holder_goes(kv: Any) -> None:
    """Ana and ben share block 1. Ana leaves: ben still reads it."""
    pool = kv.pool(3)
    shared = pool.get_new_blocks(1)
    pool.touch(shared)
    pool.free_blocks(shared)
    expect(kv.free(pool), [2, 3], at="ana and ben hold block 1; ana leaves")
    pool.free_blocks(shared)
    expect(kv.free(pool), [2, 3, 1], at="ben leaves too")


def test_02_3_a_free_block_keeps_its_name(kv: Any) -> None:
    """Free means that no request holds it, not that its keys and values are gone."""
    pool = kv.pool(3)
    blocks = pool.get_new_blocks(1)
    kv.file(pool, blocks[0], b"hello")
    pool.free_blocks(blocks)
    expect(blocks[0].block_hash, b"hello", at="the name of block 1 after it became free")
    expect(list(pool.cached_blocks), [b"hello"], at="names in cached_blocks")
    pool.check_integrity()
