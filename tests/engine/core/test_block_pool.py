"""The block pool and its free queue (R28, R30, R32, R33)."""

from __future__ import annotations

import pytest

from mini_vllm.core.block_pool import BlockPool, FreeKVCacheBlockQueue, KVCacheBlock


def free_ids(pool: BlockPool) -> list[int]:
    return [block.block_id for block in pool.free_block_queue]


def block_ids(blocks: list[KVCacheBlock]) -> list[int]:
    return [block.block_id for block in blocks]


def test_free_queue_pops_in_order_and_removes_from_the_middle() -> None:
    blocks = [KVCacheBlock(i) for i in range(5)]
    queue = FreeKVCacheBlockQueue(blocks)
    queue.remove(blocks[2])
    queue.remove(blocks[4])
    queue.remove(blocks[0])
    assert block_ids(list(queue)) == [1, 3] and queue.num_free_blocks == 2
    queue.append(blocks[2])
    assert [queue.popleft().block_id for _ in range(3)] == [1, 3, 2]
    assert queue.num_free_blocks == 0
    with pytest.raises(IndexError, match="no free block"):
        queue.popleft()


def test_free_queue_refuses_a_block_twice_and_a_block_it_does_not_hold() -> None:
    block = KVCacheBlock(1)
    queue = FreeKVCacheBlockQueue([block])
    with pytest.raises(ValueError, match="freed twice"):
        queue.append(block)
    queue.remove(block)
    with pytest.raises(ValueError, match="not in the free queue"):
        queue.remove(block)
    assert queue.num_free_blocks == 0


def test_r33_block_zero_is_the_null_block() -> None:
    pool = BlockPool(8)
    assert pool.null_block.block_id == 0
    assert pool.num_usable_blocks == pool.num_free_blocks == 7
    assert block_ids(pool.get_new_blocks(7)) == [1, 2, 3, 4, 5, 6, 7]
    assert pool.usage == 1.0
    with pytest.raises(ValueError, match="num_gpu_blocks is 1; it must be at least 2"):
        BlockPool(1)


def test_r32_freed_blocks_queue_up_tail_first() -> None:
    """7 usable blocks; 1, 2, 3 are taken and freed from the tail: 4 5 6 7 3 2 1."""
    pool = BlockPool(8)
    blocks = pool.get_new_blocks(3)
    assert [b.ref_cnt for b in blocks] == [1, 1, 1]
    pool.free_blocks(reversed(blocks))
    assert free_ids(pool) == [4, 5, 6, 7, 3, 2, 1]
    pool.check_integrity()


def test_get_new_blocks_is_all_or_nothing() -> None:
    pool = BlockPool(4)
    with pytest.raises(ValueError, match="4 blocks are wanted but 3 are free"):
        pool.get_new_blocks(4)
    assert free_ids(pool) == [1, 2, 3]
    assert pool.get_new_blocks(0) == []


def test_a_shared_block_is_free_only_after_its_last_holder() -> None:
    pool = BlockPool(4)
    blocks = pool.get_new_blocks(1)
    pool.touch(blocks)
    assert blocks[0].ref_cnt == 2
    pool.free_blocks(blocks)
    assert free_ids(pool) == [2, 3]
    pool.free_blocks(blocks)
    assert free_ids(pool) == [2, 3, 1] and blocks[0].ref_cnt == 0


@pytest.mark.history("MinivLLM#70")
def test_bug_minivllm_70_a_new_block_has_one_holder() -> None:
    """Reference counts began at 0, so the first of two sharers freed the block for both."""
    pool = BlockPool(3)
    (block,) = pool.get_new_blocks(1)
    assert block.ref_cnt == 1
    pool.free_blocks([block])
    assert block.ref_cnt == 0 and pool.num_free_blocks == 2


def cached(pool: BlockPool, *hashes: bytes) -> list[KVCacheBlock]:
    blocks = pool.get_new_blocks(len(hashes))
    pool.cache_full_blocks(blocks, list(hashes))
    return blocks


def test_a_free_block_keeps_its_hash_until_it_is_given_away() -> None:
    pool = BlockPool(4)
    blocks = cached(pool, b"a", b"b")
    pool.free_blocks(reversed(blocks))
    assert pool.get_cached_block(b"a") is blocks[0]
    assert free_ids(pool) == [3, 2, 1]
    pool.get_new_blocks(2)
    assert pool.get_cached_block(b"b") is None and blocks[1].block_hash is None
    assert pool.get_cached_block(b"a") is blocks[0]
    pool.check_integrity()


@pytest.mark.history("nano-vllm@9fa256a")
def test_bug_nano_vllm_9fa256a_touching_a_free_hit_keeps_its_hash() -> None:
    """A hit on a free block took the path of a fresh one, which reset the hash just found."""
    pool = BlockPool(4)
    blocks = cached(pool, b"a")
    pool.free_blocks(blocks)
    pool.touch(blocks)
    assert free_ids(pool) == [2, 3] and blocks[0].ref_cnt == 1
    assert pool.get_cached_block(b"a") is blocks[0] and blocks[0].block_hash == b"a"


@pytest.mark.history("nano-vllm#163", "vllm#4764")
def test_bug_nano_vllm_163_reuse_forgets_the_old_hash() -> None:
    """A reused block left its old hash in the map, so another prefix found it."""
    pool = BlockPool(2)
    first = cached(pool, b"old")
    pool.free_blocks(first)
    second = cached(pool, b"new")
    assert second[0] is first[0]
    assert pool.get_cached_block(b"old") is None
    assert list(pool.cached_blocks) == [b"new"]


@pytest.mark.history("nano-vllm#219", "MinivLLM@72dd681")
def test_r30_equal_blocks_are_all_kept_and_the_oldest_is_found() -> None:
    """Two blocks of one content: losing one leaves the other findable."""
    pool = BlockPool(4)
    first, second = cached(pool, b"same"), cached(pool, b"same")
    assert list(pool.cached_blocks[b"same"]) == [1, 2]
    assert pool.get_cached_block(b"same") is first[0]
    pool.free_blocks(second)
    pool.free_blocks(first)
    assert free_ids(pool) == [3, 2, 1]
    pool.get_new_blocks(2)
    assert pool.get_cached_block(b"same") is first[0]
    pool.get_new_blocks(1)
    assert pool.cached_blocks == {}


@pytest.mark.history("vllm#14073")
def test_bug_vllm_14073_a_cached_block_is_not_cached_again() -> None:
    """Blocks that had a hash were filed a second time."""
    pool = BlockPool(4)
    blocks = cached(pool, b"a")
    with pytest.raises(AssertionError, match="cached already"):
        pool.cache_full_blocks(blocks, [b"b"])


def test_hashes_and_blocks_must_be_as_many() -> None:
    pool = BlockPool(4)
    with pytest.raises(ValueError):
        pool.cache_full_blocks(pool.get_new_blocks(2), [b"a"])


def test_r33_reset_needs_every_block_free() -> None:
    pool = BlockPool(4)
    blocks = cached(pool, b"a", b"b")
    pool.free_blocks(blocks[1:])
    assert not pool.reset_prefix_cache()
    assert set(pool.cached_blocks) == {b"a", b"b"}
    pool.free_blocks(blocks[:1])
    assert pool.reset_prefix_cache()
    assert pool.cached_blocks == {} and all(b.block_hash is None for b in pool.blocks)
    assert pool.num_free_blocks == 3


@pytest.mark.parametrize("damage", ["ref", "hash", "empty", "null", "count", "stale"])
def test_check_integrity_sees_damage(damage: str) -> None:
    pool = BlockPool(5)
    blocks = cached(pool, b"a", b"b")
    pool.check_integrity()
    if damage == "ref":
        blocks[0].ref_cnt = 0
    elif damage == "hash":
        del pool.cached_blocks[b"a"]
    elif damage == "empty":
        pool.cached_blocks[b"c"] = {}
    elif damage == "null":
        pool.free_block_queue.append(pool.null_block)
    elif damage == "count":
        pool.free_block_queue.num_free_blocks += 1
    else:
        pool.cached_blocks[b"c"] = {1: blocks[0]}
    with pytest.raises(AssertionError):
        pool.check_integrity()
