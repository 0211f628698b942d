"""A store that several engines read and write: what one has computed, no other computes again.

Reading and writing is done by threads, for a disk takes longer than a step may. But only the
engine's own thread touches the cache: writers get copies, and what readers bring is put into its
place between two forward passes.

Source: vllm/distributed/kv_transfer/kv_connector/v1/example_connector.py#L85-L452
(ExampleConnector) @ v0.22.1. Difference: a file a block and not a folder a prompt, and all of it
checked.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from mini_vllm.config import KVTransferConfig
from mini_vllm.core.kv_cache_manager import KVCacheBlocks
from mini_vllm.core.scheduler_output import KVConnectorOutput, SchedulerOutput
from mini_vllm.kv_transfer.base import (
    ConnectorContext,
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)
from mini_vllm.kv_transfer.progress import RequestTracker
from mini_vllm.kv_transfer.redis_store import RedisStore, check_address, is_address
from mini_vllm.kv_transfer.store import HEADER, BlockStore
from mini_vllm.request import Request

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

NUM_READERS = 4
MOST_REFUSED = 100_000
"""Hashes that are remembered as not to be had."""


@dataclass(slots=True)
class Blocks:
    """Blocks of the cache, and the hashes of what is or will be in them."""

    block_ids: list[int]
    hashes: list[bytes]


@dataclass(slots=True)
class StorageMetadata(KVConnectorMetadata):
    loads: dict[str, Blocks] = field(default_factory=dict)
    """By request."""
    saves: list[Blocks] = field(default_factory=list)
    """What this step fills."""


class SharedStorageConnector(KVConnectorBase_V1):
    """Settings: ``shared_storage_path``, and ``max_bytes`` of all files together (None: no limit).

    Several machines share a folder that all of them mount, or a Redis or Valkey server, whose
    address then is the path: ``redis://host:6379``.
    """

    extra_keys: ClassVar[Mapping[str, Any]] = {"shared_storage_path": None, "max_bytes": None}

    def __init__(
        self, config: KVTransferConfig, role: KVConnectorRole, context: ConnectorContext
    ) -> None:
        super().__init__(config, role, context)
        self.store = self._open_store()
        self.tracker = RequestTracker(context.block_size)
        self.loads: dict[str, Blocks] = {}
        self.new_loads: dict[str, Blocks] = {}
        self.refused: dict[bytes, None] = {}
        """What was there and could not be had: it is not offered again."""
        self.layers: list[Tensor] = []
        self.pool: ThreadPoolExecutor | None = None
        self.writer: ThreadPoolExecutor | None = None
        self.reads: dict[str, tuple[Blocks, Future[list[bytes | None]]]] = {}
        self.writes: set[Future[None]] = set()
        self.invalid: set[int] = set()

    def _open_store(self) -> BlockStore | RedisStore:
        extra = self.config.kv_connector_extra_config
        path, max_bytes = extra["shared_storage_path"], extra.get("max_bytes")
        if is_address(path):
            return RedisStore(path, self.context.namespace)
        entry = HEADER.size + self.context.bytes_per_block
        if max_bytes is not None and max_bytes < entry:
            raise ValueError(
                f"max_bytes is {max_bytes}; the file of one block takes {entry}; raise it"
            )
        return BlockStore(path, self.context.namespace, max_bytes)

    @classmethod
    def check_config(cls, config: KVTransferConfig) -> None:
        extra = config.kv_connector_extra_config
        path, max_bytes = extra.get("shared_storage_path"), extra.get("max_bytes")
        if not isinstance(path, str) or not path or "\0" in path:
            raise ValueError(
                f"shared_storage_path is {path!r}; SharedStorageConnector needs the folder that "
                'its engines share, such as {"shared_storage_path": "/tmp/kv"}'
            )
        if max_bytes is not None and (
            isinstance(max_bytes, bool) or not isinstance(max_bytes, int)
        ):
            raise ValueError(f"max_bytes is {max_bytes!r}; it must be a whole number, or left out")
        if is_address(path):
            check_address(path)
            if max_bytes is not None:
                raise ValueError(
                    f"max_bytes is {max_bytes}, which bounds a folder; a server bounds itself: "
                    "leave it out, and set the server's maxmemory and maxmemory-policy allkeys-lru"
                )

    # ------------------------------------------------------------------ the scheduler's half

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """How many tokens the store has beyond what the cache has, in whole blocks."""
        if not self.config.is_kv_consumer:
            return 0, False
        size = self.context.block_size
        num_found = 0
        for block_hash in request.block_hashes[num_computed_tokens // size :]:
            if block_hash in self.refused or not self.store.contains(block_hash):
                break
            num_found += 1
        return num_found * size, num_found > 0

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        block_ids = blocks.get_block_ids()
        tracked = self.tracker.admitted(request, block_ids)
        if num_external_tokens == 0:
            return
        num_blocks = num_external_tokens // self.context.block_size
        first = len(block_ids) - num_blocks
        hashes = request.block_hashes[first : first + num_blocks]
        load = Blocks(block_ids[first:], hashes)
        self.loads[request.request_id] = self.new_loads[request.request_id] = load
        tracked.num_saved = len(block_ids)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> StorageMetadata:
        meta = StorageMetadata(loads=self.new_loads)
        self.new_loads = {}
        for tracked, num_full in self.tracker.planned(scheduler_output):
            first, tracked.num_saved = tracked.num_saved, max(tracked.num_saved, num_full)
            hashes = tracked.request.block_hashes[first:num_full]
            if hashes and self.config.is_kv_producer:
                meta.saves.append(Blocks(tracked.block_ids[first:num_full], hashes))
        return meta

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        for request_id in connector_output.finished_recving or ():
            load = self.loads.pop(request_id, None)
            if load is None:
                continue
            tracked = self.tracker.requests.get(request_id)
            for block_id, block_hash in zip(load.block_ids, load.hashes, strict=True):
                if block_id in connector_output.invalid_block_ids:
                    self.refused[block_hash] = None
                    if tracked is not None:  # it is computed again, and written anew
                        place = tracked.block_ids.index(block_id)
                        tracked.num_saved = min(tracked.num_saved, place)
        while len(self.refused) > MOST_REFUSED:
            del self.refused[next(iter(self.refused))]

    def request_finished(
        self, request: Request, block_ids: Sequence[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        self.tracker.forget(request.request_id)
        return False, None

    # ------------------------------------------------------------------ the worker's half

    def register_kv_caches(self, kv_caches: Mapping[str, Tensor]) -> None:
        self.layers = list(kv_caches.values())
        self.pool = ThreadPoolExecutor(NUM_READERS, "kv-read")
        self.writer = ThreadPoolExecutor(1, "kv-write")

    def start_load_kv(self) -> None:
        assert self.pool is not None
        for request_id, load in self._meta().loads.items():
            self.reads[request_id] = (load, self.pool.submit(self._read, load.hashes))

    def _read(self, hashes: list[bytes]) -> list[bytes | None]:
        """In a reader's thread. The last block first, so that the first becomes the youngest."""
        return [self.store.get(block_hash) for block_hash in reversed(hashes)][::-1]

    def wait_for_save(self) -> None:
        """Copy what this step has filled; a thread writes it."""
        from mini_vllm.kv_transfer.layout import gather_blocks

        assert self.writer is not None
        for save in self._meta().saves:
            blocks = gather_blocks(self.layers, save.block_ids).to("cpu")
            self.writes.add(self.writer.submit(self._write, blocks, save.hashes))
        self.writes = {write for write in self.writes if not write.done()}

    def _write(self, blocks: Tensor, hashes: list[bytes]) -> None:
        """In the writer's thread. What a failed request has computed is not written."""
        from mini_vllm.kv_transfer.layout import to_bytes

        try:
            pieces = to_bytes(blocks)
            for index in reversed(range(len(hashes))):
                block = blocks[index]
                if not block.is_floating_point() or bool(block.float().isfinite().all()):
                    self.store.put(hashes[index], pieces[index])
        except Exception:
            logger.exception("KV could not be stored")

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Put what readers have brought into its place."""
        arrived = {i for i, (_, read) in self.reads.items() if read.done()}
        for request_id in arrived:
            load, read = self.reads.pop(request_id)
            self._place(load, read.result())
        return None, arrived

    def _place(self, load: Blocks, pieces: list[bytes | None]) -> None:
        from mini_vllm.kv_transfer.layout import from_bytes, scatter_blocks

        size = self.context.bytes_per_block
        sound = [piece if piece is not None and len(piece) == size else None for piece in pieces]
        pairs = zip(load.block_ids, sound, strict=True)
        good = [(block_id, piece) for block_id, piece in pairs if piece is not None]
        self.invalid |= set(load.block_ids) - {block_id for block_id, _ in good}
        if good:
            block_ids, payloads = zip(*good, strict=True)
            scatter_blocks(from_bytes(payloads, self.layers), self.layers, block_ids)

    def get_block_ids_with_load_errors(self) -> set[int]:
        invalid, self.invalid = self.invalid, set()
        return invalid

    def _meta(self) -> StorageMetadata:
        assert isinstance(self.metadata, StorageMetadata)
        return self.metadata

    def wait_for_transfer(self, timeout: float) -> None:
        reads = [read for _, read in self.reads.values()]
        if reads:
            wait(reads, timeout, return_when="FIRST_COMPLETED")

    def flush(self) -> None:
        wait(self.writes)
        self.writes.clear()
        if self.writer is not None:
            self.store.evict()

    def reset(self) -> None:
        """What readers bring from now on is dropped."""
        for each in (self.reads, self.invalid, self.loads, self.new_loads, self.tracker.requests):
            each.clear()

    def shutdown(self) -> None:
        for pool in (self.pool, self.writer):
            if pool is not None:
                pool.shutdown(wait=True)
