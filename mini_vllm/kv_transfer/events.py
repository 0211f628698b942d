"""Events of the prefix cache: which blocks can be found here, and which no longer.

A router that reads them can send a request to an engine that has its beginning already::

    engine ── BlockStored(hashes, parent, tokens) ──►  router: worker 3 has these 12 blocks
           ── BlockRemoved(hashes) ─────────────────►  router: ... and this one no longer

On the wire a batch is ``[seconds, [event, ...], rank]``, and an event a list that begins with its
name, as vLLM writes it.

Source: vllm/distributed/kv_events.py#L24-L131 (BlockStored, BlockRemoved, AllBlocksCleared)
@ v0.22.1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mini_vllm.core.block_hash import extra_hash_keys
from mini_vllm.core.block_pool import BlockPool, KVCacheBlock
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.request import Request

MEDIUM_GPU = "GPU"


@dataclass(slots=True)
class BlockStored:
    """Blocks that follow one another have become findable."""

    block_hashes: list[bytes]
    parent_block_hash: bytes | None
    """Of the block before the first; None if that is a prompt's beginning."""
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = MEDIUM_GPU
    lora_name: str | None = None
    extra_keys: list[tuple[Any, ...] | None] | None = None

    def to_wire(self) -> list[Any]:
        # The last three say which group of layers this is about; here there is one.
        keys = self.extra_keys
        return [
            "BlockStored", self.block_hashes, self.parent_block_hash, self.token_ids,
            self.block_size, self.lora_id, self.medium, self.lora_name, keys, None, None, None,
        ]  # fmt: skip


@dataclass(slots=True)
class BlockRemoved:
    """Blocks can no longer be found; of two with equal contents, one."""

    block_hashes: list[bytes]
    medium: str | None = MEDIUM_GPU

    def to_wire(self) -> list[Any]:
        return ["BlockRemoved", self.block_hashes, self.medium, None]


@dataclass(slots=True)
class AllBlocksCleared:
    """Nothing can be found any more."""

    def to_wire(self) -> list[Any]:
        return ["AllBlocksCleared"]


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared


def event_from_wire(fields: Sequence[Any]) -> KVEvent:
    """Read one event; fields that a later version appends are ignored.

    Raises:
        ValueError: if it is none of the three.
    """
    name, *rest = fields
    if name == "BlockStored":
        return BlockStored(*rest[:8])
    if name == "BlockRemoved":
        return BlockRemoved(*rest[:2])
    if name == "AllBlocksCleared":
        return AllBlocksCleared()
    raise ValueError(f"the event is {name!r}; it must be BlockStored, BlockRemoved or "
                     "AllBlocksCleared")  # fmt: skip


class KVEventLog:
    """Events of one prefix cache, until they are taken."""

    def __init__(self) -> None:
        self.events: list[KVEvent] = []

    def watch(self, manager: KVEventManager) -> None:
        """Write down what happens to this manager's cache from now on."""
        manager.event_log = manager.block_pool.event_log = self

    def take(self) -> list[KVEvent]:
        events, self.events = self.events, []
        return events


class WatchedBlockPool(BlockPool):
    """A pool that logs an event for each evicted block."""

    event_log: KVEventLog | None = None

    def evict(self, block: KVCacheBlock) -> None:
        """See :meth:`BlockPool.evict`.

        Source: vllm/v1/core/block_pool.py#L392-L399 (BlockPool._maybe_evict_cached_block)
        @ v0.22.1
        """
        block_hash = block.block_hash
        super().evict(block)
        if self.event_log is not None and block_hash is not None:
            self.event_log.events.append(BlockRemoved([block_hash]))

    def reset_prefix_cache(self) -> bool:
        """See :meth:`BlockPool.reset_prefix_cache`; one event stands for all."""
        log = self.event_log
        num_events = len(log.events) if log is not None else 0
        done = super().reset_prefix_cache()
        if done and log is not None:
            log.events[num_events:] = [AllBlocksCleared()]
        return done


class KVEventManager(KVCacheManager):
    """A manager that logs an event for blocks that become findable."""

    event_log: KVEventLog | None = None
    block_pool: WatchedBlockPool

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.block_pool = WatchedBlockPool(self.block_pool.num_gpu_blocks, self.enable_caching)

    def cache_blocks(self, request: Request, num_full_blocks: int) -> None:
        """See :meth:`KVCacheManager.cache_blocks`.

        Source: vllm/v1/core/block_pool.py#L285-L331 (BlockPool.cache_full_blocks) @ v0.22.1
        """
        start = self.num_cached_blocks.get(request.request_id, 0)
        table = self.req_to_blocks[request.request_id]
        while start < num_full_blocks and table[start].block_hash is not None:
            start += 1  # another request has put it back
        super().cache_blocks(request, num_full_blocks)
        end = self.num_cached_blocks.get(request.request_id, 0)
        if self.event_log is None or end <= start:
            return
        size, hashes = self.block_size, request.block_hashes
        keys = [extra_hash_keys(request, i * size, (i + 1) * size) for i in range(start, end)]
        self.event_log.events.append(
            BlockStored(
                block_hashes=list(hashes[start:end]),
                parent_block_hash=hashes[start - 1] if start else None,
                token_ids=request.all_token_ids[start * size : end * size],
                block_size=size,
                lora_name=request.lora_name,
                extra_keys=[key or None for key in keys] if any(keys) else None,
            )
        )
