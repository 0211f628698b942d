"""Builders for the tests of phase 15. The story: two engines, north and south, with a host and a
store between them; ada and ben send prompts. Blocks hold 4 tokens."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mini_vllm.config import CacheConfig, KVTransferConfig, SchedulerConfig
from mini_vllm.core.finish_step import finish_step
from mini_vllm.core.kv_cache_manager import KVCacheBlocks
from mini_vllm.core.scheduler_output import KVConnectorOutput, ModelRunnerOutput
from mini_vllm.engine.parts.features import make_scheduler
from mini_vllm.kv_transfer.base import ConnectorContext, KVConnectorBase_V1, KVConnectorRole
from mini_vllm.kv_transfer.leases import Lease, Leases
from mini_vllm.kv_transfer.offload_manager import (
    BlockStatus,
    CPUOffloadingManager,
    LRUCachePolicy,
)
from mini_vllm.kv_transfer.offloading import Copy, OffloadingConnector
from mini_vllm.kv_transfer.p2p import Fetch, P2pTcpConnector, Pull
from mini_vllm.kv_transfer.params import RemotePrefill
from mini_vllm.kv_transfer.remote_kv import RemoteKVCacheManager
from mini_vllm.kv_transfer.store import BlockStore
from mini_vllm.kv_transfer.wire import Question
from mini_vllm.request import Request, RequestStatus

SIZE = 4
WAITS = RequestStatus.WAITING_FOR_REMOTE_KVS
NORTH, SOUTH = b"n" * 32, b"s" * 32


def key(name: str) -> bytes:
    """A block's hash: 32 times the same letter."""
    return name.encode() * 32


# ---------------------------------------------------------------- the tier
def shelf(**ref_counts: int) -> LRUCachePolicy:
    """Blocks by name, oldest first, with their holders: -1 being written, 0 none, 1 a reader."""
    policy = LRUCachePolicy(8)
    for place, (name, ref_cnt) in enumerate(ref_counts.items()):
        policy.insert(key(name), BlockStatus(place, ref_cnt))
    return policy


def names(keys: Any) -> str:
    """Names of keys, as one word."""
    return "".join(k[:1].decode() for k in keys)


def tier(num_blocks: int, stored: str = "") -> CPUOffloadingManager:
    """A host of so many blocks, of which some hold something; nothing of it is yours."""
    manager = CPUOffloadingManager(num_blocks)
    for name in stored:
        manager.policy.insert(key(name), BlockStatus(manager.free_ids.pop(), 0))
    return manager


# ---------------------------------------------------------------- requests
def request(request_id: str, num_tokens: int, computed: int = 0, first: int = 0) -> Request:
    made = Request(request_id, range(first, first + num_tokens))
    made.num_computed_tokens = computed
    return made


def host(tier: CPUOffloadingManager | None = None) -> OffloadingConnector:
    """The scheduler's half of a connector with this tier."""
    config = KVTransferConfig(
        "OffloadingConnector", "kv_both", kv_connector_extra_config={"cpu_bytes_to_use": 8}
    )
    context = ConnectorContext(NORTH, SIZE, 1, 64)
    connector = OffloadingConnector(config, KVConnectorRole.SCHEDULER, context)
    if tier is not None:
        connector.manager = tier
    return connector


def hashed(num_blocks: int, spare: int = 1) -> Request:
    """A request whose blocks are called a, b, c ..."""
    made = request("ada", num_blocks * SIZE + spare)
    made.block_hashes = [key(chr(ord("a") + i)) for i in range(num_blocks)]
    return made


def is_loading(connector: OffloadingConnector, request_id: str, keys: str) -> None:
    connector.loads[request_id] = ([key(name) for name in keys], Copy([], []))


# ---------------------------------------------------------------- a scheduler
class Offers(KVConnectorBase_V1):
    """A connector that has so many tokens of each request, and loads them beside other steps."""

    def __init__(self, tokens: dict[str, int]) -> None:
        self.tokens = tokens

    def get_num_new_matched_tokens(self, request: Request, num_computed: int) -> tuple[int, bool]:
        external = max(self.tokens.get(request.request_id, 0) - num_computed, 0)
        return external, external > 0

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num: int) -> None:
        if num:
            del self.tokens[request.request_id]


class Engine:
    """A scheduler with such a connector, and steps of a pretended model."""

    def __init__(self, tokens: dict[str, int], num_blocks: int = 32, **limits: Any) -> None:
        usual = {"max_num_batched_tokens": 64, "max_num_seqs": 4, "max_model_len": 128}
        self.scheduler: Any = make_scheduler(
            SchedulerConfig(**(usual | limits)),
            CacheConfig(block_size=SIZE, num_gpu_blocks=num_blocks),
            connector=Offers(tokens),
        )
        self.requests: dict[str, Request] = {}

    def add(self, request_id: str, num_tokens: int, first: int = 0) -> Request:
        made = self.requests[request_id] = request(request_id, num_tokens, first=first)
        self.scheduler.add_request(made)
        return made

    def step(self, received: Sequence[str] = (), invalid: Sequence[int] = ()) -> dict[str, int]:
        plan = self.scheduler.schedule()
        sampled = {
            i: [999]
            for i in plan.num_scheduled_tokens
            if self.requests[i].num_computed_tokens >= self.requests[i].num_tokens
        }
        report = KVConnectorOutput(None, set(received), set(invalid))
        finish_step(self.scheduler, plan, ModelRunnerOutput(sampled, kv_connector_output=report))
        return plan.num_scheduled_tokens

    def blocks(self, request_id: str) -> list[int]:
        return self.scheduler.kv_cache_manager.get_block_ids(request_id)


def loaded(num_tokens: int, computed: int) -> tuple[RemoteKVCacheManager, Request]:
    """A manager, and a request whose first ``computed`` tokens have blocks that were loaded."""
    manager = RemoteKVCacheManager(32, SIZE, 128)
    made = request("ada", num_tokens)
    made.set_block_hasher(manager.block_hasher)
    manager.allocate_for_load(made, max(computed, SIZE), 0, KVCacheBlocks(), False)
    made.num_computed_tokens = computed
    return manager, made


# ---------------------------------------------------------------- a store, and a peer
def store(folder: Path, namespace: bytes = NORTH, max_bytes: int | None = None) -> BlockStore:
    return BlockStore(folder, namespace, max_bytes)


SOURCE = RemotePrefill("north", "ada", "lease-1", "127.0.0.1", 1, [5, 6], 8)


class South(P2pTcpConnector):
    """The worker's half of a decode engine, without a network."""

    def __init__(self) -> None:
        config = KVTransferConfig("P2pTcpConnector", "kv_consumer", engine_id="south")
        super().__init__(config, KVConnectorRole.WORKER, ConnectorContext(NORTH, SIZE, 16, 64))
        self.leases: Any = ended_leases()
        self.placed: list[str] = []
        self.told: list[str] = []

    def _place(self, fetch: Fetch) -> None:
        self.placed.append(fetch.pull.source.request_id)

    def _tell_done(self, source: RemotePrefill) -> None:
        self.told.append(source.request_id)

    def fetches_now(self, request_id: str, deadline: float, blocks: Sequence[int] = (1,)) -> Any:
        """Begin a fetch; its answer comes when the Future that is returned gets a result."""
        source = RemotePrefill("north", request_id, "lease", "127.0.0.1", 1, [5], 4)
        answer: Future[bytes] = Future()
        answer.set_running_or_notify_cancel()  # its thread has begun: it cannot be cancelled
        self.fetches[request_id] = Fetch(Pull(source, [5], list(blocks)), deadline, answer)
        return answer


def ended_leases(*request_ids: str) -> SimpleNamespace:
    """A table of leases that has never heard of you: the leases of these requests are over."""
    return SimpleNamespace(take_ended=lambda now: set(request_ids))


def leases(**held: tuple[str, list[int], float | None]) -> Leases:
    """What engine north holds: by request the lease's name, blocks, and the deadline."""
    table = Leases("north", NORTH, 10.0)
    for request_id, (name, block_ids, deadline) in held.items():
        table.leases[request_id] = Lease(name, block_ids, deadline)
    return table


def question(**other: Any) -> Question:
    """South asks north for ada's blocks 5 and 6."""
    usual: dict[str, Any] = {
        "kind": "read", "engine_id": "north", "request_id": "ada", "lease": "lease-1",
        "namespace": NORTH, "block_ids": [5, 6],
    }  # fmt: skip
    return Question(**(usual | other))


@pytest.fixture
def lab() -> SimpleNamespace:
    """All builders of this file."""
    builders = (
        key, shelf, names, tier, request, host, hashed, is_loading, Engine, loaded, store, South,
        ended_leases, leases, question,
    )  # fmt: skip
    return SimpleNamespace(
        SIZE=SIZE, WAITS=WAITS, NORTH=NORTH, SOUTH=SOUTH, **{b.__name__: b for b in builders}
    )
