"""vLLM V0's block manager: forks that copy on write, and blocks that move to the host and back.

::

    device   r0  [4, 9, 2]          two completions of one prompt share blocks 4 and 9
             r1  [4, 9, 7]
                  │  │  │           swap_out([r0, r1]): a shared block moves once
    host     r0  [0, 1, 2]
             r1  [0, 1, 3]
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

from mini_vllm.config import CacheConfig
from mini_vllm.core.block_pool import KVCacheBlock
from mini_vllm.core.kv_cache_manager import KVCacheBlocks, cdiv
from mini_vllm.policies.late_hashing import LateHashing
from mini_vllm.request import Request


class AllocStatus(enum.Enum):
    """Whether blocks can be allocated: now, later, or not even from the empty pool."""

    OK = enum.auto()
    LATER = enum.auto()
    NEVER = enum.auto()


class BlockManager(LateHashing):
    """Block tables on the device and on the host.

    Args:
        cache_config: both pools; ``num_cpu_blocks`` may be 0.
        max_model_len, hash_root: see :class:`~mini_vllm.core.kv_cache_manager.KVCacheManager`.
        watermark: share of the device blocks that an admission leaves free for running requests. It
            does not apply while the pool is idle: then no request is running.
    """

    def __init__(
        self,
        cache_config: CacheConfig,
        max_model_len: int,
        hash_root: bytes | None = None,
        watermark: float = 0.01,
    ) -> None:
        num_gpu_blocks = cache_config.num_gpu_blocks
        assert num_gpu_blocks is not None
        super().__init__(
            num_gpu_blocks,
            cache_config.block_size,
            max_model_len,
            cache_config.enable_prefix_caching,
            hash_root,
        )
        self.watermark_blocks = int(watermark * self.block_pool.num_usable_blocks)
        self.num_cpu_blocks = cache_config.num_cpu_blocks
        self.host_tables: dict[str, list[int]] = {}
        """The host blocks of swapped requests."""
        self.free_host_blocks = list(reversed(range(self.num_cpu_blocks)))

    # ------------------------------------------------------------------ is there room?

    def can_allocate(self, request: Request, num_lookahead_tokens: int = 0) -> AllocStatus:
        """Whether a waiting request can have blocks for all of its tokens.

        Hits are not discounted: a request that fits so fits with them too.
        """
        return self._status(self._num_blocks(request.num_tokens + num_lookahead_tokens))

    def can_swap_in(self, requests: Sequence[Request], slots: Sequence[int]) -> AllocStatus:
        """Whether swapped requests can come back, all together, the i-th with ``slots[i]``."""
        tables = [self.host_tables[request.request_id] for request in requests]
        num_moved = len({block for table in tables for block in table})
        num_added = sum(
            max(self._num_blocks(num_slots) - len(table), 0)
            for table, num_slots in zip(tables, slots, strict=True)
        )
        return self._status(num_moved + num_added)

    def can_swap_out(self, requests: Sequence[Request]) -> bool:
        """Whether the host has room for what the requests have computed."""
        blocks = {block.block_id for r in requests for block in self._computed(r)}
        return len(blocks) <= len(self.free_host_blocks)

    def num_blocks_to_append(self, request: Request, num_slots: int) -> int:
        """Blocks that :meth:`append` would take from the pool."""
        num_held = len(self.req_to_blocks[request.request_id])
        return max(self._num_blocks(num_slots) - num_held, 0) + self._must_copy(request)

    def _status(self, num_blocks: int) -> AllocStatus:
        usable = self.block_pool.num_usable_blocks
        if num_blocks > usable:
            return AllocStatus.NEVER
        idle = self.num_free_blocks == usable
        kept = 0 if idle else self.watermark_blocks
        return AllocStatus.OK if num_blocks + kept <= self.num_free_blocks else AllocStatus.LATER

    def _num_blocks(self, num_slots: int) -> int:
        return cdiv(min(num_slots, self.max_model_len), self.block_size)

    # ------------------------------------------------------------------ fork and copy on write

    def fork(self, parent: Request, child: Request, num_tokens: int) -> None:
        """Let ``child``, which holds nothing, start with the parent's first ``num_tokens`` tokens.

        It shares the blocks that hold them, the last one even if it is only partly theirs, and
        counts the tokens as computed. Of its blocks as many can be found by their hashes
        (``num_cached_blocks``) as of the parent's, but full ones only. Nothing is copied yet: see
        :meth:`append`.

        Args:
            parent: has computed at least ``num_tokens`` tokens, which the child has too.
        """
        shared = self.req_to_blocks[parent.request_id][: cdiv(num_tokens, self.block_size)]
        self.block_pool.touch(shared)
        self.req_to_blocks[child.request_id] = shared
        num_full = num_tokens // self.block_size
        num_cached = self.num_cached_blocks[parent.request_id]
        self.num_cached_blocks[child.request_id] = min(num_cached, num_full)
        child.num_computed_tokens = num_tokens

    def append(
        self, request: Request, num_slots: int
    ) -> tuple[KVCacheBlocks, list[tuple[int, int]]]:
        """Make the slots after the computed tokens, up to ``num_slots``, the request's own.

        If the next token goes to a block that others hold too, the request gets a copy of it and
        leaves the original to them: copy on write. The last holder writes to the original. Then
        new blocks follow as far as they are wanted.

        Returns:
            The blocks added at the end, and ``(source, destination)`` of the copy, if there is
            one. It must be made before anything is written.

        Raises:
            ValueError: if the pool has too few blocks for copy and new ones together. Nothing is
                changed then; ask :meth:`num_blocks_to_append` before.
        """
        new_blocks = self.block_pool.get_new_blocks(self.num_blocks_to_append(request, num_slots))
        table = self.req_to_blocks[request.request_id]
        copies = []
        if self._must_copy(request):
            index = request.num_computed_tokens // self.block_size
            original, table[index] = table[index], new_blocks.pop(0)
            self.block_pool.free_blocks([original])
            copies.append((original.block_id, table[index].block_id))
        table.extend(new_blocks)
        return KVCacheBlocks(new_blocks), copies

    def _must_copy(self, request: Request) -> bool:
        """Whether the next token would go to a block that others hold too."""
        table = self.req_to_blocks[request.request_id]
        index = request.num_computed_tokens // self.block_size
        return index < len(table) and table[index].ref_cnt > 1

    # ------------------------------------------------------------------ swapping

    def swap_out(self, requests: Sequence[Request]) -> list[tuple[int, int]]:
        """Move what the requests have computed to the host, and free all of their blocks.

        A block that several of them share moves once, and they share it on the host.

        Returns:
            ``(device block, host block)`` for every block to copy.
        """
        host_block: dict[int, int] = {}
        for request in requests:
            table = [block.block_id for block in self._computed(request)]
            for block_id in table:
                if block_id not in host_block:
                    host_block[block_id] = self.free_host_blocks.pop()
            super().free(request)
            self.host_tables[request.request_id] = [host_block[i] for i in table]
        return list(host_block.items())

    def swap_in(self, requests: Sequence[Request]) -> list[tuple[int, int]]:
        """Bring swapped requests back: they have their computed tokens again, in other blocks.

        None of these is found by a hash: ``num_cached_blocks`` begins at 0.

        Returns:
            ``(host block, device block)`` for every block to copy.
        """
        device_block: dict[int, KVCacheBlock] = {}
        for request in requests:
            table = []
            for host_id in self.host_tables.pop(request.request_id):
                if host_id in device_block:
                    self.block_pool.touch([device_block[host_id]])
                else:
                    (device_block[host_id],) = self.block_pool.get_new_blocks(1)
                table.append(device_block[host_id])
            self.req_to_blocks[request.request_id] = table
            self.num_cached_blocks[request.request_id] = 0
        self.free_host_blocks.extend(device_block)
        return [(host_id, block.block_id) for host_id, block in device_block.items()]

    def _computed(self, request: Request) -> list[KVCacheBlock]:
        """The blocks of the computed tokens; those reserved beyond them hold nothing."""
        num_blocks = cdiv(request.num_computed_tokens, self.block_size)
        return self.req_to_blocks[request.request_id][:num_blocks]

    def free(self, request: Request) -> None:
        """Take all blocks from ``request``, on the device and on the host."""
        super().free(request)
        table = self.host_tables.pop(request.request_id, [])
        shared = {block for other in self.host_tables.values() for block in other}
        self.free_host_blocks.extend(block for block in table if block not in shared)

    def check_integrity(self, requests: Iterable[Request] = ()) -> None:
        """As the core's, and for the host: every block is free or in a table."""
        super().check_integrity(requests)
        held = {block for table in self.host_tables.values() for block in table}
        everything = sorted([*self.free_host_blocks, *held])
        assert everything == list(range(self.num_cpu_blocks)), "host blocks are lost or doubled"
