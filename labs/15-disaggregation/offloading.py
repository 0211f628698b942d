"""Host memory as a second tier: blocks that the device evicts can be had back without computing.

Every block that becomes full is copied to the host after the forward pass that filled it. When a
request's beginning is no longer in the device's cache, it is loaded from there, beside other steps.

Source: vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py#L235-L996
(OffloadingConnectorScheduler) @ v0.22.1
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
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
from mini_vllm.kv_transfer.offload_manager import POLICIES, CPUOffloadingManager
from mini_vllm.kv_transfer.progress import RequestTracker
from mini_vllm.platforms import platform_of
from mini_vllm.request import Request, RequestStatus

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class Copy:
    """Blocks of the device and blocks of the host, pair by pair."""

    device_ids: list[int]
    host_ids: list[int]


@dataclass(slots=True)
class OffloadingMetadata(KVConnectorMetadata):
    loads: dict[str, Copy] = field(default_factory=dict)
    """By request; before the forward pass."""
    stores: dict[int, Copy] = field(default_factory=dict)
    """By job; after it."""


class OffloadingConnector(KVConnectorBase_V1):
    """Settings: ``cpu_bytes_to_use``, and ``eviction_policy`` "lru" (default) or "arc"."""

    extra_keys: ClassVar[Mapping[str, Any]] = {"cpu_bytes_to_use": None, "eviction_policy": "lru"}

    def __init__(
        self, config: KVTransferConfig, role: KVConnectorRole, context: ConnectorContext
    ) -> None:
        super().__init__(config, role, context)
        extra = config.kv_connector_extra_config
        num_blocks = extra["cpu_bytes_to_use"] // context.bytes_per_block
        if num_blocks < 1:
            raise ValueError(
                f"cpu_bytes_to_use is {extra['cpu_bytes_to_use']}; a block of this model takes "
                f"{context.bytes_per_block} bytes; raise it"
            )
        self.manager = CPUOffloadingManager(num_blocks, extra.get("eviction_policy", "lru"))
        self.tracker = RequestTracker(context.block_size)
        self.loads: dict[str, tuple[list[bytes], Copy]] = {}
        """What is loaded now, by request."""
        self.new_loads: dict[str, Copy] = {}
        self.stores: dict[int, tuple[str, list[bytes]]] = {}
        """What is stored now: the request, and the keys."""
        self.job_ids = itertools.count()
        self.layers: list[Tensor] = []
        self.loaded: set[str] = set()
        self.host: Tensor | None = None
        """``[num_blocks, L, 2, B, H, D]``; the worker's half allocates it."""

    @classmethod
    def check_config(cls, config: KVTransferConfig) -> None:
        extra = config.kv_connector_extra_config
        size = extra.get("cpu_bytes_to_use")
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(
                f"cpu_bytes_to_use is {size!r}; OffloadingConnector needs the bytes of main memory "
                'that it may take, such as {"cpu_bytes_to_use": 1000000000}'
            )
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if size > memory:
            raise ValueError(
                f"cpu_bytes_to_use is {size}; this machine has {memory} bytes of main memory; "
                "lower it"
            )
        policy = extra.get("eviction_policy", "lru")
        if policy not in POLICIES:
            raise ValueError(
                f"eviction_policy is {policy!r}; it must be one of {', '.join(POLICIES)}"
            )

    # ------------------------------------------------------------------ the scheduler's half

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """How many tokens the host has beyond what the device has; always loaded beside steps.

        They are the blocks that follow the first ``num_computed_tokens`` tokens, as long as the
        tier has one after the other: ``request.block_hashes`` are their keys. None, to be asked
        again, if one of them is still being written, or if another request is loading one of those
        found right now: after that they are in the device's cache, and need not come twice.

        Returns:
            The number, and whether there is one to load: (0, False) and (None, False) offer
            nothing. The blocks of an offer are touched; without one, none are.

        Source: vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py#L498-L541
        (OffloadingConnectorScheduler.get_num_new_matched_tokens) @ v0.22.1
        """
        # TODO 15.5
        raise NotImplementedError(
            "TODO 15.5: write OffloadingConnector.get_num_new_matched_tokens in labs/15-disaggregation/offloading.py"
            " (phase 15, 02-mini-build.md#task-5)"
        )

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        block_ids = blocks.get_block_ids()
        self.tracker.admitted(request, block_ids).num_saved = 0
        if num_external_tokens == 0:
            return
        num_blocks = num_external_tokens // self.context.block_size
        device_ids = block_ids[-num_blocks:]
        first = len(block_ids) - num_blocks
        keys = request.block_hashes[first : first + num_blocks]
        copy = Copy(device_ids, self.manager.prepare_load(keys))
        self.loads[request.request_id] = (keys, copy)
        self.new_loads[request.request_id] = copy

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> OffloadingMetadata:
        """Loads that have begun, and for every block that this step fills a place on the host.

        If there cannot be a place for all new blocks of a request, they are not stored.
        """
        self._give_up_stores()  # a step that failed has confirmed nothing
        meta = OffloadingMetadata(loads=self.new_loads)
        self.new_loads = {}
        for tracked, num_full in self.tracker.planned(scheduler_output):
            hashes = tracked.request.block_hashes[tracked.num_saved : num_full]
            if not hashes:
                continue
            place = self.manager.prepare_store(hashes)
            if place is not None and place.keys_to_store:
                # A prompt may repeat itself, but a hash cannot: it covers all before it.
                device_of = dict(zip(hashes, tracked.block_ids[tracked.num_saved :], strict=False))
                device_ids = [device_of[key] for key in place.keys_to_store]
                job = next(self.job_ids)
                meta.stores[job] = Copy(device_ids, place.block_ids)
                self.stores[job] = (tracked.request.request_id, place.keys_to_store)
            self.manager.touch(hashes)
            tracked.num_saved = num_full
        return meta

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        for job in connector_output.kv_connector_worker_meta or ():
            if job in self.stores:
                self.manager.complete_store(self.stores.pop(job)[1])
        for request_id in connector_output.finished_recving or ():
            if request_id in self.loads:
                self.manager.complete_load(self.loads.pop(request_id)[0])

    def request_finished(
        self, request: Request, block_ids: Sequence[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Its blocks may go: what was to be stored of them has been copied in its own step."""
        self.tracker.forget(request.request_id)
        if request.status == RequestStatus.FINISHED_ERROR:  # its KV cannot be trusted
            for job, (request_id, _) in list(self.stores.items()):
                if request_id == request.request_id:
                    self.manager.complete_store(self.stores.pop(job)[1], success=False)
        return False, None

    def _give_up_stores(self) -> None:
        for _, keys in self.stores.values():
            self.manager.complete_store(keys, success=False)
        self.stores.clear()

    # ------------------------------------------------------------------ the worker's half

    def register_kv_caches(self, kv_caches: Mapping[str, Tensor]) -> None:
        import torch

        from mini_vllm.kv_transfer.layout import block_shape

        self.layers = list(kv_caches.values())
        pinned = platform_of(self.layers[0].device).is_pin_memory_available
        shape = (self.manager.num_blocks, *block_shape(self.layers))
        self.host = torch.empty(shape, dtype=self.layers[0].dtype, pin_memory=pinned)

    def start_load_kv(self) -> None:
        from mini_vllm.kv_transfer.layout import scatter_blocks

        meta = self._meta()
        assert self.host is not None
        for copy in meta.loads.values():
            scatter_blocks(self.host[copy.host_ids], self.layers, copy.device_ids)
        self.loaded |= meta.loads.keys()

    def wait_for_save(self) -> None:
        from mini_vllm.kv_transfer.layout import gather_blocks

        assert self.host is not None
        for copy in self._meta().stores.values():
            self.host[copy.host_ids] = gather_blocks(self.layers, copy.device_ids).to("cpu")

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        loaded, self.loaded = self.loaded, set()
        return None, loaded

    def build_connector_worker_meta(self) -> list[int]:
        return list(self._meta().stores)

    def _meta(self) -> OffloadingMetadata:
        assert isinstance(self.metadata, OffloadingMetadata)
        return self.metadata

    def wait_for_transfer(self, timeout: float) -> None:
        """Nothing takes longer than its step."""

    def reset(self) -> None:
        """Give up what is being written or read; blocks that are ready stay."""
        self.loaded.clear()
        if self.role == KVConnectorRole.SCHEDULER:
            self._give_up_stores()
            for keys, _ in self.loads.values():
                self.manager.complete_load(keys)
            self.loads.clear()
            self.new_loads.clear()
            self.tracker.requests.clear()
