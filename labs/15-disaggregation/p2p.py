"""From engine to engine: one computes a prompt, the other fetches its KV and goes on.

::

    prefill engine                                     decode engine
    computes the prompt, ends with one token
    holds its blocks, answers with where they are ──►  gets blocks of its own, waits
                                      ◄── READ ──────  fetches beside other steps
    lets go                           ◄── DONE ──────  runs

The decode engine pulls, because it knows its free space. A peer may be dead, stopped or slow, and
the other side cannot tell which. So every wait has an end, on both sides: the engine that fetches
gives up after ``transfer_timeout_s``, the one that holds after ``kv_lease_duration``.

Source: vllm/distributed/kv_transfer/kv_connector/v1/nixl/scheduler.py#L66-L674
(NixlConnectorScheduler) @ v0.22.1
"""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from mini_vllm.config import KVTransferConfig
from mini_vllm.core.kv_cache_manager import KVCacheBlocks, cdiv
from mini_vllm.core.scheduler_output import SchedulerOutput
from mini_vllm.kv_transfer.base import (
    ConnectorContext,
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)
from mini_vllm.kv_transfer.identity import prompt_identity
from mini_vllm.kv_transfer.leases import Leases
from mini_vllm.kv_transfer.params import RemotePrefill, read_remote_prefill
from mini_vllm.kv_transfer.progress import RequestTracker
from mini_vllm.kv_transfer.wire import BlockClient, BlockServer, Question
from mini_vllm.request import Request, RequestStatus

if TYPE_CHECKING:
    from torch import Tensor

NUM_THREADS = 8
"""Fetches at a time."""


@dataclass(slots=True)
class Pull:
    """Blocks to fetch, and where they go."""

    source: RemotePrefill
    remote_block_ids: list[int]
    local_block_ids: list[int]


@dataclass(slots=True)
class P2pMetadata(KVConnectorMetadata):
    pulls: dict[str, Pull] = field(default_factory=dict)
    """By request."""
    promised: dict[str, tuple[str, list[int]]] = field(default_factory=dict)
    """By request, that others may ask for once it has ended: its lease, and its blocks so far."""
    kept: set[str] = field(default_factory=set)
    """Of those, requests that have ended and keep their blocks."""
    dropped: set[str] = field(default_factory=set)
    """Of those, requests that have ended otherwise."""


@dataclass(slots=True)
class Fetch:
    """A pull on its way."""

    pull: Pull
    deadline: float
    """On the monotonic clock."""
    answer: Future[bytes]


class P2pTcpConnector(KVConnectorBase_V1):
    """Settings: ``host`` and ``port`` (0: any) that a prefill side serves at,
    ``transfer_timeout_s`` of a fetch, and ``kv_lease_duration``, the seconds for which blocks wait
    to be fetched."""

    extra_keys: ClassVar[Mapping[str, Any]] = {
        "host": "127.0.0.1",
        "port": 0,
        "transfer_timeout_s": 30.0,
        "kv_lease_duration": 120.0,
    }

    def __init__(
        self, config: KVTransferConfig, role: KVConnectorRole, context: ConnectorContext
    ) -> None:
        super().__init__(config, role, context)
        extra = {**self.extra_keys, **config.kv_connector_extra_config}
        self.host, self.port = extra["host"], extra["port"]
        self.timeout, self.lease_duration = extra["transfer_timeout_s"], extra["kv_lease_duration"]
        self.engine_id = config.engine_id or ""
        self.address: tuple[str, int] | None = None
        self.tracker = RequestTracker(context.block_size)
        self.lease_names: dict[str, str] = {}
        """Of unfinished requests that others will fetch."""
        self.meta = P2pMetadata()
        """For the next step."""
        self.layers: list[Tensor] = []
        self.leases = Leases(self.engine_id, context.namespace, self.lease_duration)
        self.server: BlockServer | None = None
        self.client: BlockClient | None = None
        self.pool: ThreadPoolExecutor | None = None
        self.fetches: dict[str, Fetch] = {}
        self.invalid: set[int] = set()
        self.progress = threading.Event()

    @classmethod
    def check_config(cls, config: KVTransferConfig) -> None:
        extra = {**cls.extra_keys, **config.kv_connector_extra_config}
        for name in ("transfer_timeout_s", "kv_lease_duration"):
            value = extra[name]
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0 < value < math.inf:
                raise ValueError(f"{name} is {value!r}; it must be seconds, more than 0 and finite")
        port = extra["port"]
        if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port < 65536:
            raise ValueError(f"port is {port!r}; it must be 0 for any, or below 65536")
        if not isinstance(extra["host"], str) or not extra["host"]:
            raise ValueError(f"host is {extra['host']!r}; it must be a name or an address")

    # ------------------------------------------------------------------ the scheduler's half

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """All of the prompt that is not here, if another engine has it.

        Source: vllm/distributed/kv_transfer/kv_connector/v1/nixl/scheduler.py#L366-L411
        (NixlConnectorScheduler.get_num_new_matched_tokens) @ v0.22.1
        """
        source = self._source(request)
        if source is None or not self.config.is_kv_consumer:
            return 0, False
        num_tokens = min(source.num_tokens, request.num_prompt_tokens)
        num_external = max(num_tokens - num_computed_tokens, 0)
        return num_external, num_external > 0

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        """Fetch once: after a preemption, or a failure, the prompt is computed here."""
        params = request.kv_transfer_params or {}
        if params.get("do_remote_decode"):
            self.tracker.admitted(request, blocks.get_block_ids())
            self.lease_names.setdefault(request.request_id, uuid.uuid4().hex)
        source = self._source(request)
        if source is None:
            return
        params["do_remote_prefill"] = False
        if num_external_tokens == 0:  # all of it is here, and the other side waits to be told
            self._tell_done(source)
            return
        size = self.context.block_size
        local_ids = blocks.get_block_ids()
        num_tokens = min(source.num_tokens, request.num_prompt_tokens)
        first = (num_tokens - num_external_tokens) // size
        remote_ids = source.block_ids[first : cdiv(num_tokens, size)]
        self.meta.pulls[request.request_id] = Pull(source, remote_ids, local_ids[first:])

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> P2pMetadata:
        meta, self.meta = self.meta, P2pMetadata()
        followed = self.tracker.requests
        for request_id in followed.keys() & scheduler_output.num_scheduled_tokens.keys():
            tracked = followed[request_id]
            new_ids = scheduler_output.new_block_ids.get(request_id, [])
            if tracked.block_ids[-len(new_ids) :] != new_ids:  # an admission's are known
                tracked.block_ids = tracked.block_ids + new_ids
            meta.promised[request_id] = (self.lease_names[request_id], tracked.block_ids)
        return meta

    def request_finished(
        self, request: Request, block_ids: Sequence[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Hold the prompt's blocks for the engine that decodes, and say where they are.

        Only of a request that others are to go on with (``do_remote_decode``), that has ended as it
        should (FINISHED_LENGTH_CAPPED or FINISHED_STOPPED) and has blocks. All others may go.
        A request that ends before it has fetched what another engine holds for it lets that engine
        know.

        Source: vllm/distributed/kv_transfer/kv_connector/v1/nixl/scheduler.py#L586-L674
        (NixlConnectorScheduler.request_finished) @ v0.22.1
        """
        request_id = request.request_id
        self.tracker.forget(request_id)
        lease = self.lease_names.pop(request_id, None)
        source = self._source(request)
        if source is not None:
            self._tell_done(source)
        if lease is None:
            return False, None
        ended_well = (RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_STOPPED)
        is_kept = request.status in ended_well and bool(block_ids) and self.config.is_kv_producer
        if not is_kept or self.address is None:
            self.meta.dropped.add(request_id)
            return False, None
        self.meta.kept.add(request_id)
        num_blocks = cdiv(request.num_prompt_tokens, self.context.block_size)
        host, port = self.address
        return True, {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": list(block_ids[:num_blocks]),
            "remote_engine_id": self.engine_id,
            "remote_request_id": request_id,
            "remote_lease": lease,
            "remote_host": host,
            "remote_port": port,
            "remote_num_tokens": request.num_prompt_tokens,
            "remote_prompt": prompt_identity(request),
            "tp_size": 1,
        }

    def request_refused(self, kv_transfer_params: Mapping[str, Any]) -> None:
        """The engine that holds KV for it must not wait until a lease ends.

        Source: https://github.com/vllm-project/vllm/pull/41269, which adds such a request and
        aborts it at once
        """
        source = read_remote_prefill(kv_transfer_params)
        if source is not None:
            self._tell_done(source)

    def _source(self, request: Request) -> RemotePrefill | None:
        """Where another engine holds this prompt's KV; None once it was fetched."""
        params = request.kv_transfer_params
        return read_remote_prefill(params) if params else None

    def set_xfer_handshake_metadata(self, metadata: Mapping[int, Any]) -> None:
        self.address = metadata[0]
        self.client = BlockClient()  # also without a fetch it says when the holder need not wait

    # ------------------------------------------------------------------ the worker's half

    def register_kv_caches(self, kv_caches: Mapping[str, Tensor]) -> None:
        self.layers = list(kv_caches.values())
        if self.config.is_kv_producer:
            self.server = BlockServer(self.host, self.port, self._serve)
        self.client = BlockClient()
        self.pool = ThreadPoolExecutor(NUM_THREADS, "kv-fetch")

    def get_handshake_metadata(self) -> tuple[str, int] | None:
        return None if self.server is None else (self.server.host, self.server.port)

    def _serve(self, question: Question) -> bytes | None:
        """In the server's thread: copy blocks that a lease holds still.

        No step writes to them meanwhile: an ended request's blocks are its own while it keeps
        them, and a lease ends only under the same lock.
        """
        from mini_vllm.kv_transfer.layout import gather_blocks, to_bytes

        if question.kind == "done":
            self.leases.release(question)
            self.progress.set()
            return None
        with self.leases.reading(question):
            blocks = gather_blocks(self.layers, question.block_ids)
        return b"".join(to_bytes(blocks))

    def start_load_kv(self) -> None:
        """Take in what the scheduler's half has decided, before a block can be written to."""
        meta = self.metadata
        assert isinstance(meta, P2pMetadata)
        self.leases.update(meta.promised, meta.kept, meta.dropped)
        for request_id, pull in meta.pulls.items():
            self.fetches[request_id] = self._start_fetch(pull)

    def handle_preemptions(self, preempted_req_ids: Sequence[str]) -> None:
        self.leases.update({}, set(), set(preempted_req_ids))

    def _start_fetch(self, pull: Pull) -> Fetch:
        assert self.pool is not None
        deadline = time.monotonic() + self.timeout
        answer = self.pool.submit(self._fetch, pull, deadline)
        answer.add_done_callback(lambda _: self.progress.set())
        return Fetch(pull, deadline, answer)

    def _fetch(self, pull: Pull, deadline: float) -> bytes:
        """In a thread of the pool."""
        assert self.client is not None
        question = self._question("read", pull.source, pull.remote_block_ids)
        source, left = pull.source, deadline - time.monotonic()
        return self.client.read(source.host, source.port, question, left)

    def _question(self, kind: str, source: RemotePrefill, block_ids: list[int]) -> Question:
        namespace = self.context.namespace
        return Question(
            kind, source.engine_id, source.request_id, source.lease, namespace, block_ids
        )

    def _tell_done(self, source: RemotePrefill) -> None:
        """Tell the holder that its blocks will not be fetched (any more)."""
        if self.client is not None:
            self.client.tell(source.host, source.port, self._question("done", source, []))

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Requests whose blocks will not be fetched any more, and those whose fetch is over.

        A fetch is over when its answer is there, be it an error, or when its ``deadline`` has come
        (``now >= deadline``, on the monotonic clock). Then the request
        is named, whatever has come of it: with its KV in place (:meth:`_place`), or with its blocks
        among ``self.invalid``. It leaves ``self.fetches``, so that an answer that comes after
        the deadline finds no request: the blocks may be another request's by then. The other engine
        gets a message that it can free its blocks (:meth:`_tell_done`).

        Returns:
            What ``self.leases.take_ended`` names now, and the requests whose fetch is over. Both
            are sets, also if they are empty.
        """
        # TODO 15.12
        raise NotImplementedError(
            "TODO 15.12: write P2pTcpConnector.get_finished in labs/15-disaggregation/p2p.py"
            " (phase 15, 02-mini-build.md#task-12)"
        )

    def _place(self, fetch: Fetch) -> None:
        """Put an answer into the cache; its blocks are invalid if it is none, or too short."""
        from mini_vllm.kv_transfer.layout import from_bytes, scatter_blocks

        size, block_ids = self.context.bytes_per_block, fetch.pull.local_block_ids
        try:
            payload = memoryview(fetch.answer.result())
            pieces = [payload[i : i + size] for i in range(0, len(payload), size)]
            scatter_blocks(from_bytes(pieces, self.layers), self.layers, block_ids)
        except Exception as error:
            self.invalid |= set(block_ids)
            self._log(fetch, error)

    def _log(self, fetch: Fetch, error: Exception) -> None:
        import logging

        name = fetch.pull.source.request_id
        logging.getLogger(__name__).warning("the KV of %r did not arrive: %s", name, error)

    def get_block_ids_with_load_errors(self) -> set[int]:
        invalid, self.invalid = self.invalid, set()
        return invalid

    def wait_for_transfer(self, timeout: float) -> None:
        self.progress.wait(timeout)
        self.progress.clear()

    def reset(self) -> None:
        """Answers find no request any more; what was held for others is released."""
        self.fetches.clear()
        self.invalid.clear()
        self.leases.clear()
        self.tracker.requests.clear()
        self.lease_names.clear()
        self.meta = P2pMetadata()

    def shutdown(self) -> None:
        if self.server is not None:
            self.server.close()
            self.server = None
        if self.pool is not None:
            self.pool.shutdown(wait=False, cancel_futures=True)
            self.pool = None
        if self.client is not None:
            self.client.close()
            self.client = None
