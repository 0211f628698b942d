"""How a scheduler handles KV that is on its way: pure bookkeeping on requests and block tables.

::

    offered ──► blocks allocated ──► WAITING_FOR_REMOTE_KVS ──► arrived ──► WAITING, n computed
                                             │ some blocks invalid      (full hit: n - 1)
                                             ▼
                                     cut to the first invalid block

    ended, but a transfer still reads or writes its blocks ──► held ──► over ──► free

Source: vllm/v1/core/sched/scheduler.py#L2043-L2337 (Scheduler) @ v0.22.1
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from mini_vllm.core.kv_cache_manager import KVCacheBlocks, KVCacheManager, cdiv
from mini_vllm.request import Request

Offer = tuple[int | None, bool]
"""What a connector can bring of a request: the tokens behind those found here (None: it does not
know yet), and whether they come later than this step's forward pass."""

NOTHING: Offer = (0, False)


class RemoteKVCacheManager(KVCacheManager):
    """A manager that can give blocks whose contents are still to come.

    ::

        get_computed_blocks finds         | then allocate_slots is asked for
        | local hits | offered            | to compute    |     a request without blocks
        | arrived, in blocks that it has  | to compute    |     one that has been loaded
    """

    num_kept_from_loads = 0
    """Free blocks that :meth:`allocate_for_load` leaves for others."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.offers: dict[str, Offer] = {}
        """What a connector can bring in this pass of the scheduler, by request. Of a request that
        is to be admitted with the blocks it holds: the tokens that have arrived there."""

    def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int]:
        """See the base class. Tokens that have arrived, or that the connector brings before the
        forward pass, count as computed; no block of theirs is among those found."""
        hits, num_local = self._no_blocks, 0
        if request.request_id not in self.req_to_blocks:
            hits, num_local = super().get_computed_blocks(request)
        external, is_async = self.offers.get(request.request_id, NOTHING)
        return hits, num_local if is_async else num_local + (external or 0)

    def allocate_for_load(
        self,
        request: Request,
        num_external_tokens: int,
        num_hit_tokens: int,
        hits: KVCacheBlocks,
        full_sequence_must_fit: bool,
    ) -> KVCacheBlocks | None:
        """Give a request slots for the tokens that its KV is loaded into, behind ``hits``.

        No lookup can find the new blocks before :func:`take_arrived`. A request may hold blocks
        already: those of a prompt of one token, which all came, and which is to be computed again.

        Returns:
            The new blocks, or None, with nothing changed, if there are too few: for the load, or,
            if ``full_sequence_must_fit``, for all of the request's tokens.
        """
        num_held = len(self.req_to_blocks.get(request.request_id, ())) + len(hits.blocks)
        num_new = max(cdiv(num_hit_tokens + num_external_tokens, self.block_size) - num_held, 0)
        num_missing = cdiv(min(request.num_tokens, self.max_model_len), self.block_size) - num_held
        num_free = self.num_free_blocks - sum(block.ref_cnt == 0 for block in hits.blocks)
        if num_new + self.num_kept_from_loads > num_free:
            return None
        if full_sequence_must_fit and num_missing > num_free:
            return None
        return self._extend_table(request.request_id, hits.blocks, num_new)

    def cache_blocks(self, request: Request, num_full_blocks: int) -> None:
        """Make blocks findable, each of them once.

        A block that several requests held when its KV turned out to be missing was taken out of
        the cache for all of them. The first to compute it again puts it back; for the others it
        is there already.
        """
        if not self.enable_caching:
            return
        table = self.req_to_blocks[request.request_id]
        start = self.num_cached_blocks[request.request_id]
        for index in range(start, num_full_blocks):
            if table[index].block_hash is None:
                self.block_pool.cache_full_blocks([table[index]], [request.block_hashes[index]])
        self.num_cached_blocks[request.request_id] = max(start, num_full_blocks)

    @contextmanager
    def kept(self, request: Request) -> Iterator[None]:
        """Inside, code that frees the request leaves it its blocks."""
        request_id = request.request_id
        table = self.req_to_blocks.pop(request_id, None)
        num_cached = self.num_cached_blocks.pop(request_id, 0)
        yield
        if table is not None:
            self.req_to_blocks[request_id] = table
            self.num_cached_blocks[request_id] = num_cached


@dataclass(slots=True)
class TransferState:
    """Which transfers use the blocks of which requests.

    Attributes:
        loading: requests whose blocks are being written; they hold them and compute nothing.
        arrived: those of them whose transfer is over, and which were not admitted since. failed:
        those of the arrived of which some blocks did not arrive. held: ended requests whose blocks
        are still needed, and by which transfers: "recv" and
            "send".
    """

    loading: set[str] = field(default_factory=set)
    arrived: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    held: dict[str, tuple[Request, set[str]]] = field(default_factory=dict)

    def clear(self) -> None:
        for each in (self.loading, self.arrived, self.failed, self.held):
            each.clear()


def take_arrived(state: TransferState, manager: KVCacheManager, request: Request) -> None:
    """A request whose transfer is over gets its turn: settle what it has computed.

    - Its full blocks become findable (``manager.cache_blocks(request, number of full blocks)``):
      those that hold its ``num_computed_tokens``, which a failed load has cut already.
    - If nothing of it arrived, it lets go of its blocks (``manager.free``): with the next try it is
      looked up anew, and may find in the cache what it asked for.
    - If all of its tokens are there, the last one is computed again, in its place: its logits are
      needed to sample the next token. So ``num_computed_tokens`` is one less.
    - It leaves ``loading``, ``arrived`` and ``failed``.

    Source: vllm/v1/core/sched/scheduler.py#L2069-L2101 (Scheduler._update_waiting_for_remote_kv)
    @ v0.22.1
    """
    # TODO 15.7
    raise NotImplementedError(
        "TODO 15.7: write take_arrived in labs/15-disaggregation/remote_kv.py"
        " (phase 15, 02-mini-build.md#task-7)"
    )


def transfers_of_ended(state: TransferState, request: Request, connector_keeps: bool) -> set[str]:
    """Which transfers still touch the blocks of a request that has just ended.

    - "recv": it was loading and its transfer is not over. It will write into these blocks, whatever
      has become of the request; freed now, they would be another request's when it does.
    - "send": the connector's ``request_finished`` has said True (``connector_keeps``).

    The request leaves ``loading``, ``arrived`` and ``failed``.

    Returns:
        A subset of {"recv", "send"}. Its blocks may go if it is empty.

    Source: vllm/v1/core/sched/scheduler.py#L1779-L1840 (Scheduler.finish_requests) @ v0.22.1
    """
    # TODO 15.8
    raise NotImplementedError(
        "TODO 15.8: write transfers_of_ended in labs/15-disaggregation/remote_kv.py"
        " (phase 15, 02-mini-build.md#task-8)"
    )


def transfers_over(state: TransferState, ids: Iterable[str], kind: str) -> list[Request]:
    """Transfers of one ``kind``, "recv" or "send", are over.

    A held request whose last transfer this was leaves ``held``; a request that is loading and has
    received has ``arrived``. Ids without a waiting request are ignored: a worker may know of
    a transfer that the scheduler has given up.

    Returns:
        The requests whose blocks may go now, each of them once, sorted by their ids: ``ids`` may
        be a set.

    Source: vllm/v1/core/sched/scheduler.py#L2130-L2163 (Scheduler._update_from_kv_xfer_finished)
    @ v0.22.1. Difference: there an id that is not known ends the engine.
    """
    # TODO 15.8
    raise NotImplementedError(
        "TODO 15.8: write transfers_over in labs/15-disaggregation/remote_kv.py"
        " (phase 15, 02-mini-build.md#task-8)"
    )


def find_rewinds(
    requests: Iterable[Request],
    invalid_block_ids: Collection[int],
    tables: Mapping[str, list[int]],
    num_scheduled_tokens: Mapping[str, int],
    block_size: int,
) -> dict[str, int]:
    """Which requests count on KV that did not arrive, and how many of their tokens are sound.

    Sound is what lies before the first invalid block. Only blocks with tokens that were computed
    *before* this step count: ``num_computed_tokens`` less this step's ``num_scheduled_tokens``
    (absent: none), rounded up to blocks. What this step was to compute was never to be loaded.

    Every request that holds an invalid block is cut, not only the first: the one that is to
    compute it again may be aborted before it does. What is given stays as it is: the caller goes
    back.

    Args:
        requests: those that hold blocks.
        tables: block ids, by request.

    Returns:
        Sound tokens by request id, of those that have to go back; in the order of ``requests``.

    Source: vllm/v1/core/sched/scheduler.py#L2165-L2266
    (Scheduler._update_requests_with_invalid_blocks) @ v0.22.1
    """
    # TODO 15.9
    raise NotImplementedError(
        "TODO 15.9: write find_rewinds in labs/15-disaggregation/remote_kv.py"
        " (phase 15, 02-mini-build.md#task-9)"
    )
