"""All KV blocks of one device: which are free, which are shared, what they hold.

A block is in exactly one of two places. In use: ``ref_cnt`` requests have it in their tables.
Free: ``ref_cnt`` is 0 and it waits in the free queue. A free block may still carry a hash, so
a later request can take it back with its contents; it is only forgotten when it is given away::

    allocate ◄── head │ 4 │ 5 │ 9 │ 3 │ 2 │ 1 │ tail ◄── free
                        least recently used ──► most recently used

Source: vllm/v1/core/block_pool.py#L130-L520 (BlockPool) @ v0.22.1
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from mini_vllm.config.checks import require_at_least, require_flag


@dataclass(slots=True, eq=False)
class KVCacheBlock:
    """The bookkeeping of one block; its keys and values live in the worker's tensors.

    Source: vllm/v1/core/kv_cache_utils.py#L116-L161 (KVCacheBlock) @ v0.22.1
    """

    block_id: int
    ref_cnt: int = 0
    """How many block tables hold this block."""
    block_hash: bytes | None = None
    """Set while the block is full and findable by its hash."""
    prev_free: KVCacheBlock | None = None
    next_free: KVCacheBlock | None = None

    def __repr__(self) -> str:
        tag = f" {self.block_hash.hex()[:6]}" if self.block_hash else ""
        return f"<block {self.block_id} ref={self.ref_cnt}{tag}>"


class FreeKVCacheBlockQueue:
    """Free blocks in eviction order: a doubly linked list, so that any block can leave in O(1).

    A ``deque`` would need O(n) to take a block out of the middle, which every prefix hit on a
    free block does. Two sentinels spare all the special cases at the ends::

        head ⇄ block 4 ⇄ block 5 ⇄ … ⇄ block 1 ⇄ tail

    Source: vllm/v1/core/kv_cache_utils.py#L164-L372 (FreeKVCacheBlockQueue) @ v0.22.1
    """

    def __init__(self, blocks: Iterable[KVCacheBlock]) -> None:
        self.num_free_blocks = 0
        self._head = KVCacheBlock(block_id=-1)
        self._tail = KVCacheBlock(block_id=-1)
        self._head.next_free = self._tail
        self._tail.prev_free = self._head
        for block in blocks:
            self.append(block)

    def popleft(self) -> KVCacheBlock:
        """Take the least recently used block.

        Raises:
            IndexError: if no block is free.
        """
        # TODO 02.2
        raise NotImplementedError(
            "TODO 02.2: write FreeKVCacheBlockQueue.popleft in labs/02-kv-cache/block_pool.py"
            " (phase 02, 02-mini-build.md#task-2)"
        )

    def remove(self, block: KVCacheBlock) -> None:
        """Take ``block`` out, wherever it stands, by joining its neighbours.

        Raises:
            ValueError: if the block is not in the queue.
        """
        # TODO 02.2
        raise NotImplementedError(
            "TODO 02.2: write FreeKVCacheBlockQueue.remove in labs/02-kv-cache/block_pool.py"
            " (phase 02, 02-mini-build.md#task-2)"
        )

    def append(self, block: KVCacheBlock) -> None:
        """Put ``block`` at the most recently used end.

        Raises:
            ValueError: if the block is in the queue already.
        """
        # TODO 02.2
        raise NotImplementedError(
            "TODO 02.2: write FreeKVCacheBlockQueue.append in labs/02-kv-cache/block_pool.py"
            " (phase 02, 02-mini-build.md#task-2)"
        )

    def prepend_all(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put ``blocks`` at the other end, in this order: the first is given away next.

        Only the profile "current" asks for it; vLLM 0.32.0 calls it ``prepend_n``.
        """
        for block in reversed(blocks):
            first = self._head.next_free
            assert first is not None
            block.prev_free, block.next_free = self._head, first
            self._head.next_free = first.prev_free = block
        self.num_free_blocks += len(blocks)

    def __iter__(self) -> Iterator[KVCacheBlock]:
        """From the next block to be given away to the last."""
        block = self._head.next_free
        while block is not None and block is not self._tail:
            yield block
            block = block.next_free


class BlockPool:
    """Gives blocks out, takes them back, and remembers what they hold.

    Args:
        num_gpu_blocks: blocks in all. Block 0 is set aside as the *null block*: never given
            out, it fills the unused ends of block tables and takes the writes of padding rows.
        enable_caching: whether full blocks stay findable by their hash.

    A method costs what the blocks that it is given cost, however many the pool has.

    Raises:
        ValueError: for too few blocks, or an argument of another kind.

    Source: vllm/v1/core/block_pool.py#L149-L182 (BlockPool.__init__) @ v0.22.1
    """

    def __init__(self, num_gpu_blocks: int, enable_caching: bool = True) -> None:
        fix = "block 0 is the null block, and requests need others; raise it"
        require_at_least("num_gpu_blocks", num_gpu_blocks, 2, fix)
        require_flag("enable_caching", enable_caching)
        self.num_gpu_blocks = num_gpu_blocks
        self.enable_caching = enable_caching
        self.blocks = [KVCacheBlock(block_id) for block_id in range(num_gpu_blocks)]
        self.free_block_queue = FreeKVCacheBlockQueue(self.blocks)
        self.null_block = self.free_block_queue.popleft()
        self.cached_blocks: dict[bytes, dict[int, KVCacheBlock]] = {}
        """hash → the blocks that hold this content, by id, oldest first. Equal blocks that were
        filled side by side are all kept: a block table never changes under a running request."""

    @property
    def num_usable_blocks(self) -> int:
        """Blocks that requests can hold between them: all but the null block."""
        return self.num_gpu_blocks - 1

    @property
    def num_free_blocks(self) -> int:
        return self.free_block_queue.num_free_blocks

    @property
    def usage(self) -> float:
        """Share of the usable blocks that are in use, from 0.0 to 1.0."""
        return 1.0 - self.num_free_blocks / self.num_usable_blocks

    def get_cached_block(self, block_hash: bytes) -> KVCacheBlock | None:
        """The oldest block that holds the content called ``block_hash``, or None."""
        # TODO 02.4
        raise NotImplementedError(
            "TODO 02.4: write BlockPool.get_cached_block in labs/02-kv-cache/block_pool.py"
            " (phase 02, 02-mini-build.md#task-4)"
        )

    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        """Give out the ``num_blocks`` least recently used free blocks, each with ``ref_cnt`` 1.

        Whatever they held is forgotten: their hashes leave the cache.

        Raises:
            ValueError: if fewer are free; nothing is changed then.

        Source: vllm/v1/core/block_pool.py#L333-L363 (BlockPool.get_new_blocks) @ v0.22.1
        """
        # TODO 02.3
        raise NotImplementedError(
            "TODO 02.3: write BlockPool.get_new_blocks in labs/02-kv-cache/block_pool.py"
            " (phase 02, 02-mini-build.md#task-3)"
        )

    def touch(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Let one more request hold ``blocks``, which it found by their hashes.

        An unheld block comes back out of the free queue.

        Source: vllm/v1/core/block_pool.py#L402-L417 (BlockPool.touch) @ v0.22.1
        """
        # TODO 02.3
        raise NotImplementedError(
            "TODO 02.3: write BlockPool.touch in labs/02-kv-cache/block_pool.py"
            " (phase 02, 02-mini-build.md#task-3)"
        )

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """Let one request go of ``ordered_blocks``; the first of them will be reused first.

        Only a block that no other request holds becomes free. It keeps its hash.

        Source: vllm/v1/core/block_pool.py#L419-L433 (BlockPool.free_blocks) @ v0.22.1
        """
        # TODO 02.3
        raise NotImplementedError(
            "TODO 02.3: write BlockPool.free_blocks in labs/02-kv-cache/block_pool.py"
            " (phase 02, 02-mini-build.md#task-3)"
        )

    def cache_full_blocks(self, blocks: Sequence[KVCacheBlock], hashes: Sequence[bytes]) -> None:
        """Make full ``blocks`` findable, the i-th by the i-th hash.

        Source: vllm/v1/core/block_pool.py#L211-L331 (BlockPool.cache_full_blocks) @ v0.22.1
        """
        # TODO 02.4
        raise NotImplementedError(
            "TODO 02.4: write BlockPool.cache_full_blocks in labs/02-kv-cache/block_pool.py"
            " (phase 02, 02-mini-build.md#task-4)"
        )

    def evict(self, block: KVCacheBlock) -> None:
        """Forget what ``block`` holds, if it is findable at all.

        Source: vllm/v1/core/block_pool.py#L367-L400 (BlockPool._maybe_evict_cached_block) @ v0.22.1
        """
        # TODO 02.3
        raise NotImplementedError(
            "TODO 02.3: write BlockPool.evict in labs/02-kv-cache/block_pool.py"
            " (phase 02, 02-mini-build.md#task-3)"
        )

    def reset_prefix_cache(self) -> bool:
        """Forget the contents of all blocks, as is needed when the weights change.

        Returns:
            False, with nothing done, while any block is in use.
        """
        if self.num_free_blocks < self.num_usable_blocks:
            return False
        for block in self.blocks:
            self.evict(block)
        return True

    def check_integrity(self) -> None:
        """Raise AssertionError unless the pool's records agree with each other."""
        free = list(self.free_block_queue)
        free_ids = {block.block_id for block in free}
        assert len(free) == len(free_ids) == self.num_free_blocks, "the free queue is miscounted"
        assert self.null_block.block_id not in free_ids, "the null block is in the free queue"
        for block in self.blocks[1:]:
            in_queue = block.block_id in free_ids
            assert in_queue == (block.ref_cnt == 0), f"{block} free: {in_queue}"
            found = self.cached_blocks.get(block.block_hash, {}) if block.block_hash else {}
            assert block.block_hash is None or found.get(block.block_id) is block, f"{block} lost"
        for block_hash, blocks in self.cached_blocks.items():
            assert blocks, f"empty entry for {block_hash.hex()[:6]}"
            assert all(b.block_hash == block_hash for b in blocks.values()), "a stale hash"
