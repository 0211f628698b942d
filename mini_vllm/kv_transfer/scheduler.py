"""A scheduler whose requests may get their KV from elsewhere.

Phase 03's scheduler decides which requests are admitted, with how many tokens; the KV cache manager
tells it which of them come from elsewhere. New here are requests that wait for their KV, blocks
that outlive their request, and KV that does not arrive.

Source: vllm/v1/core/sched/scheduler.py#L64-L2337 (Scheduler) @ v0.22.1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.extension import SchedulerExtension
from mini_vllm.core.kv_cache_manager import KVCacheBlocks, PrefixCacheStats, cdiv
from mini_vllm.core.request_queue import RequestQueue
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.scheduler_output import (
    EngineCoreOutput,
    KVConnectorOutput,
    ModelRunnerOutput,
    SchedulerOutput,
)
from mini_vllm.core.step_plan import StepPlan
from mini_vllm.errors import RequestFailure
from mini_vllm.kv_transfer.base import KVConnectorBase_V1
from mini_vllm.kv_transfer.remote_kv import (
    NOTHING,
    Offer,
    RemoteKVCacheManager,
    TransferState,
    find_rewinds,
    take_arrived,
    transfers_of_ended,
    transfers_over,
)
from mini_vllm.request import Request, RequestStatus

FAILED_LOAD = "the KV of {count} prompt tokens did not arrive"


class RemoteKVScheduler(Scheduler):
    """Asks a connector for KV before it computes, and lets it finish with KV before it frees.

    Args:
        connector: the scheduler's half.
        kv_load_failure_policy: requests whose KV does not arrive "recompute" it, or "fail".
    """

    kv_cache_manager: RemoteKVCacheManager
    breaks_deadlocks = True
    """False: stand still where upstream does. For comparing the two."""

    def __init__(
        self,
        scheduler_config: SchedulerConfig,
        cache_config: CacheConfig,
        extensions: Sequence[SchedulerExtension] = (),
        hash_root: bytes | None = None,
        *,
        connector: KVConnectorBase_V1,
        kv_load_failure_policy: str = "fail",
    ) -> None:
        self.reports = TransferReports(connector)
        extensions = (*extensions, self.reports)
        super().__init__(scheduler_config, cache_config, extensions, hash_root)
        self.connector = connector
        self.recompute_kv_load_failures = kv_load_failure_policy == "recompute"
        self.transfers = TransferState()
        self.passed_over: list[Request] = []
        """Requests that this pass has left waiting, in the order of the pass: skipped, or loading
        now."""
        self.unfinished_prompts: set[Request] = set()
        """Requests that load, or have begun, and still have tokens of their prompt to compute."""
        self.external_cache_stats = PrefixCacheStats()
        self.has_started_loads = False
        self.num_ahead = 0
        """Slots for drafts that the request being admitted gets."""
        self.rewound: dict[str, int] = {}
        """Tokens of requests for which the worker has sampled too much; for the next plan."""
        self.last_rewinds: dict[str, int] = {}
        """Sound tokens of requests that the last step's report has sent back."""
        self.failed_loads: dict[str, str] = {}
        """Requests that end because their KV was lost in this step, with the reason."""
        self.kv_transfer_params: dict[str, dict[str, Any]] = {}
        """Parameters that ended requests return, until their last output carries them."""

    @property
    def offers(self) -> dict[str, Offer]:
        """What the connector has answered in this pass, by request."""
        return self.kv_cache_manager.offers

    @property
    def held(self) -> list[str]:
        """Ids of ended requests whose blocks a transfer still needs."""
        return list(self.transfers.held)

    def waits_for_transfer(self) -> bool:
        """Whether something outside the engine will change what can be scheduled."""
        deferred = any(external is None for external, _ in self.offers.values())
        waiting = self.transfers.loading - self.transfers.arrived
        return bool(waiting or self.transfers.held or deferred)

    # ------------------------------------------------------------------ requests in and out

    def add_request(self, request: Request) -> None:
        """See :meth:`Scheduler.add_request`. An id also stays in use while a transfer needs its
        blocks."""
        if request.request_id in self.transfers.held:
            raise ValueError(
                f"request id {request.request_id!r} is in use: the blocks of the request that had "
                "it are still being sent; choose another"
            )
        super().add_request(request)

    def _free_request(self, request: Request) -> None:
        """Release what an ended request holds; its blocks only when no transfer uses them.

        Source: vllm/v1/core/sched/scheduler.py#L1842-L1864 (Scheduler._free_request) @ v0.22.1
        """
        block_ids = self.kv_cache_manager.get_block_ids(request.request_id)
        if self.rules.connector_hears_of_computed_blocks:
            num_blocks = cdiv(request.num_computed_tokens, self.kv_cache_manager.block_size)
            block_ids = block_ids[:num_blocks]
        keeps, params = self.connector.request_finished(request, block_ids)
        if params:
            self.kv_transfer_params[request.request_id] = params
        self.unfinished_prompts.discard(request)
        pending = transfers_of_ended(self.transfers, request, keeps and bool(block_ids))
        if not pending:
            super()._free_request(request)
            return
        with self.kv_cache_manager.kept(request):
            super()._free_request(request)
        self.transfers.held[request.request_id] = (request, pending)

    def release_held(self) -> None:
        """Free the blocks that transfers hold: the engine ends."""
        for request, _ in self.transfers.held.values():
            self.kv_cache_manager.free(request)
        self.transfers.held.clear()

    def has_requests(self) -> bool:
        """Steps go on while ended requests hold blocks: a later one frees them."""
        return super().has_requests() or bool(self.transfers.held)

    # ------------------------------------------------------------------ admission

    def _schedule_waiting(self, step: StepPlan) -> None:
        """See :meth:`Scheduler._schedule_waiting`. Requests that wait for KV keep their order.

        They are admitted as far as they can be: they hold blocks, and nothing is computed. So they
        take neither budget nor a place in ``running``.
        """
        self.offers.clear()
        self.passed_over, self.has_started_loads = [], False
        super()._schedule_waiting(step)
        if self.has_started_loads:
            self.skipped_waiting.remove_requests(self.passed_over)
            self.skipped_waiting.prepend_requests(reversed(self.passed_over))
        idle = not (step.num_scheduled_tokens or self.running or step.preempted)
        if idle and self.breaks_deadlocks:
            self._break_deadlock(step)

    def _next_queue(self) -> RequestQueue | None:
        """See :meth:`Scheduler._next_queue`. If requests that hold blocks have a queue of their
        own, it comes first, also under "priority": none of them stands behind a request that waits
        for blocks."""
        if self.rules.skipped_keep_their_queue:
            return self.skipped_waiting or self.waiting or None
        return super()._next_queue()

    def _stays_apart(self, request: Request) -> bool:
        """See :meth:`Scheduler._stays_apart`. A request also stays in its queue if its load has
        failed and this pass has not reached it."""
        return super()._stays_apart(request) or request not in self.passed_over

    def _may_admit(self, request: Request) -> bool:
        """Whether only budget and blocks keep ``request`` waiting, KV included.

        The connector is asked once a pass, and only about requests that have computed nothing.

        Source: vllm/v1/core/sched/scheduler.py#L556-L613 (Scheduler.schedule) @ v0.22.1
        """
        admissible = self._has_arrived(request) and super()._may_admit(request)
        if admissible and request.num_computed_tokens == 0:
            admissible = self._offer_for(request)[0] is not None
        if not admissible:
            self.passed_over.append(request)
        return admissible

    def _has_arrived(self, request: Request) -> bool:
        """False while KV is on its way; a request whose transfer is over waits for its turn again.

        Source: vllm/v1/core/sched/scheduler.py#L2103-L2118
        (Scheduler._try_promote_blocked_waiting_request) @ v0.22.1
        """
        if request.status != RequestStatus.WAITING_FOR_REMOTE_KVS:
            return True
        if request.request_id not in self.transfers.arrived:
            return False
        take_arrived(self.transfers, self.kv_cache_manager, request)
        request.transition_to(RequestStatus.WAITING)
        return True

    def _offer_for(self, request: Request) -> Offer:
        """What the connector can bring of a request, asked once in this pass."""
        request_id = request.request_id
        if request_id not in self.offers:
            self.offers[request_id] = self._ask_connector(request)
        return self.offers[request_id]

    def _ask_connector(self, request: Request) -> Offer:
        if request.skip_reading_prefix_cache:  # it needs the logits of every token
            return NOTHING
        _, num_local = self.kv_cache_manager.get_computed_blocks(request)
        external, is_async = self.connector.get_num_new_matched_tokens(request, num_local)
        if external is not None:
            most = request.num_tokens - num_local - (0 if is_async else 1)
            assert 0 <= external <= most, (
                f"the connector offers {external} tokens of {request} beyond {num_local}; at most "
                f"{most} can be used"
            )
        return external, is_async

    def _try_admit(self, step: StepPlan, request: Request) -> bool:
        """See :meth:`Scheduler._try_admit`. A request whose KV comes later than this step's forward
        pass gets blocks for it, and waits."""
        offered, is_async = self.offers.get(request.request_id, NOTHING)
        external = offered or 0
        if external and is_async:
            hits, num_local = self.kv_cache_manager.get_computed_blocks(request)
            self.kv_cache_manager.num_kept_from_loads = self._num_kept_from_loads()
            admitted = self._start_load(step, request, hits, num_local, external)
        else:
            admitted = self._admit(step, request, external)
        if admitted:
            num_planned = step.num_scheduled_tokens.get(request.request_id, 0)
            if num_planned == 0 or request.num_computed_tokens + num_planned < request.num_tokens:
                self.unfinished_prompts.add(request)
            self.offers.pop(request.request_id, None)
            table = self.kv_cache_manager.req_to_blocks[request.request_id]
            self.connector.update_state_after_alloc(request, KVCacheBlocks(list(table)), external)
        return admitted

    def _admit(self, step: StepPlan, request: Request, external: int) -> bool:
        """Let a request run with what it has: tokens that have arrived, or that the connector
        brings before this step's forward pass.

        :meth:`Scheduler._try_admit` finds both with the manager, and would count them as found in
        the cache of this engine. External tokens are counted apart, and those that have arrived
        were counted when their load began.

        Source: vllm/v1/core/sched/scheduler.py#L634-L804 (Scheduler.schedule) @ v0.22.1
        """
        manager, arrived = self.kv_cache_manager, request.num_computed_tokens
        counted = request.num_cached_tokens, replace(manager.prefix_cache_stats)
        self.num_ahead = self.scheduler_config.num_lookahead_tokens if arrived else 0
        if arrived:
            self.offers[request.request_id] = (arrived, False)
            request.num_computed_tokens = 0
        if not super()._try_admit(step, request):
            if arrived:
                del self.offers[request.request_id]
                request.num_computed_tokens = arrived
            return False
        request.num_cached_tokens, manager.prefix_cache_stats = counted
        if not arrived:
            self._count_cached(request, request.num_computed_tokens - external, external)
        return True

    def _at_admission(self) -> dict[str, int]:
        """Also slots for drafts, as running requests have them, for a request that has begun."""
        return {"num_lookahead_tokens": self.num_ahead, **super()._at_admission()}

    def _num_kept_from_loads(self) -> int:
        """Free blocks that a load may not take: what prompts under way still need.

        vLLM 0.32.0 has it as ``Scheduler._inflight_prefill_reserved_blocks``.
        """
        if not self.rules.loads_leave_room:
            return 0
        manager, drafts = self.kv_cache_manager, 0
        if self.num_speculative_tokens:
            drafts = 1 + self.num_speculative_tokens + self.scheduler_config.num_lookahead_tokens
        kept = cdiv(drafts, manager.block_size)
        for request in self.unfinished_prompts:
            num_slots = min(request.num_tokens, self.max_model_len) + drafts
            held = manager.req_to_blocks.get(request.request_id, ())
            kept += max(cdiv(num_slots, manager.block_size) - len(held), 0)
        return kept

    def _preempt(self, request: Request) -> None:
        super()._preempt(request)
        self.unfinished_prompts.discard(request)

    def _advance_computed_tokens(self, output: SchedulerOutput) -> None:
        super()._advance_computed_tokens(output)
        for request_id in output.num_scheduled_tokens if self.unfinished_prompts else ():
            request = self.requests[request_id]
            if request.num_computed_tokens >= request.num_tokens:
                self.unfinished_prompts.discard(request)

    def _start_load(
        self, step: StepPlan, request: Request, hits: KVCacheBlocks, num_local: int, external: int
    ) -> bool:
        """Give a request the blocks that its KV is loaded into, and let it wait for that.

        ::

            | local hits | to be loaded |  not computed   |
            |  touched   | new blocks   |  no block yet   |     no tokens, no budget, no row

        The count of computed tokens is set already; nothing reads it before the load is over, and a
        failed load cuts it. It is ``num_local + external``, also where that is the whole prompt:
        :func:`~mini_vllm.kv_transfer.remote_kv.take_arrived` takes a token back. The new blocks are
        not findable. ``full_sequence_must_fit`` is the engine's own rule,
        ``scheduler_config.scheduler_reserve_full_isl``. The caller tells the connector.

        :meth:`_schedule_waiting` takes the request out of its queue once this has returned True. If
        ``has_started_loads`` says so, it puts those in ``passed_over`` back into theirs, in order.

        Returns:
            Whether the load begins; False, with nothing changed, if there are too few blocks.

        Source: vllm/v1/core/sched/scheduler.py#L645-L782 (Scheduler.schedule) @ v0.22.1
        """
        blocks = self.kv_cache_manager.allocate_for_load(
            request, external, num_local, hits, self.scheduler_config.scheduler_reserve_full_isl
        )
        if blocks is None:
            return False
        self._count_cached(request, num_local, external)
        request.num_computed_tokens = num_local + external
        request.transition_to(RequestStatus.WAITING_FOR_REMOTE_KVS)
        self.transfers.loading.add(request.request_id)
        self.passed_over.append(request)
        self.has_started_loads = True
        return True

    def _count_cached(self, request: Request, num_local: int, external: int) -> None:
        if request.num_preemptions == 0:
            request.num_cached_tokens = num_local + external
            request.num_external_tokens = external
        self.external_cache_stats.record(request.num_tokens - num_local, external)
        self.kv_cache_manager.prefix_cache_stats.record(request.num_tokens, num_local)

    # ------------------------------------------------------------------ progress

    def _break_deadlock(self, step: StepPlan) -> None:
        """If nothing runs and nothing can be admitted in order, run requests that hold blocks.

        ::

            head A   holds nothing, needs 10 blocks      |  9 are free
            then B   its KV has arrived, holds 12        |  runs, ends, and frees them

        Upstream stops at A, in this step and in all that follow. Here B runs first, but only if no
        request would run otherwise. If not even a holder fits, because several hold parts of the
        pool, the last of them gives up its blocks and starts anew.
        """
        holders = [request for request in self._all_waiting() if self._is_ready_holder(request)]
        for request in holders:
            if step.token_budget == 0 or len(self.running) == self.scheduler_config.max_num_seqs:
                return
            if self._may_admit(request) and self._try_admit(step, request):
                self.waiting.remove_requests([request])
                self.skipped_waiting.remove_requests([request])
                if request.status != RequestStatus.RUNNING:  # it loads once more
                    self.skipped_waiting.prepend_request(request)
        if holders and not self.running and self.transfers.loading <= self.transfers.arrived:
            self._start_anew(holders[-1])

    def _is_ready_holder(self, request: Request) -> bool:
        holds = request.request_id in self.kv_cache_manager.req_to_blocks
        is_loading = request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
        return holds and (not is_loading or request.request_id in self.transfers.arrived)

    def _start_anew(self, request: Request) -> None:
        """Take the blocks of a request that waits, as if it had never been given any."""
        self._has_arrived(request)
        self.kv_cache_manager.free(request)
        request.num_computed_tokens = 0

    def _check_progress(self, step: StepPlan) -> None:
        """See :meth:`Scheduler._check_progress`; a transfer that is under way is progress."""
        on_its_way = self.waits_for_transfer() or self.transfers.arrived
        if not on_its_way and self.breaks_deadlocks:
            super()._check_progress(step)

    def _make_output(self, step: StepPlan) -> SchedulerOutput:
        """The finished plan, with what the connector and the rewinds add to it."""
        output = super()._make_output(step)
        output.rewound, self.rewound = self.rewound, {}
        output.kv_connector_metadata = self.connector.build_connector_meta(output)
        return output

    # ------------------------------------------------------------------ after the forward pass

    def loads_done(self, output: SchedulerOutput, invalid: set[int]) -> set[str]:
        """Handle blocks that did not arrive, before any token of the step is taken in.

        Returns:
            The running requests that computed over them: their tokens are thrown away.

        Source: vllm/v1/core/sched/scheduler.py#L2268-L2337 (Scheduler._handle_invalid_blocks)
        @ v0.22.1
        """
        self.last_rewinds = {}
        if not invalid:
            return set()
        waiting = [r for r in self.skipped_waiting if r.request_id in self.transfers.loading]
        late = self._rewinds(waiting, invalid, {})
        lost = self._rewinds(self.running, invalid, output.num_scheduled_tokens)
        self.last_rewinds = late | lost
        for request_id, num_sound in self.last_rewinds.items():
            request = self.requests[request_id]
            num_lost = request.num_computed_tokens - num_sound
            num_lost -= output.num_scheduled_tokens.get(request_id, 0)
            if not self.recompute_kv_load_failures:
                self.failed_loads[request_id] = FAILED_LOAD.format(count=num_lost)
            self._rewind(request, num_sound)
        self.transfers.failed |= late.keys()
        return set(lost)

    def _rewinds(
        self, requests: Sequence[Request], invalid: set[int], scheduled: dict[str, int]
    ) -> dict[str, int]:
        manager = self.kv_cache_manager
        tables = {r.request_id: manager.get_block_ids(r.request_id) for r in requests}
        return find_rewinds(requests, invalid, tables, scheduled, manager.block_size)

    def _rewind(self, request: Request, num_sound_tokens: int) -> None:
        """Go back to the tokens whose KV is sound. The blocks behind them must not be found any
        more.

        Upstream leaves them findable: until they are computed again, other requests read missing
        KV.
        """
        self.kv_cache_manager.uncache_blocks(request, num_sound_tokens)
        request.num_computed_tokens = num_sound_tokens
        request.num_cached_tokens = min(request.num_cached_tokens, num_sound_tokens)
        if request.status == RequestStatus.RUNNING:
            request.spec_token_ids = []
            self.tokens_at_admission[request.request_id] = request.num_tokens
            self.rewound[request.request_id] = request.num_tokens

    def update_from_output(
        self, output: SchedulerOutput, sampled_token_ids: Mapping[str, list[int]]
    ) -> list[EngineCoreOutput]:
        """See :meth:`Scheduler.update_from_output`. Before it, tokens that were computed over lost
        KV are thrown away. After it, their requests end, if they are not to compute it themselves,
        and blocks that no transfer needs any more are free.

        Source: vllm/v1/core/sched/scheduler.py#L1535-L1551 (Scheduler.update_from_output)
        @ v0.22.1
        """
        report = self.reports.take()
        lost = self.loads_done(output, report.invalid_block_ids)
        sampled = {i: tokens for i, tokens in sampled_token_ids.items() if i not in lost}
        outputs = super().update_from_output(output, sampled)
        reasons, self.failed_loads = self.failed_loads, {}
        for request_id, reason in reasons.items():
            request = self.requests.get(request_id)
            if request is not None:
                request.failure = RequestFailure.of(reason)
                self.finish_requests(request_id, RequestStatus.FINISHED_ERROR)
                outputs.append(EngineCoreOutput.last(request, [], request.status))
        self._take_report(report)
        for ended in outputs:
            if ended.finish_reason is not None:
                ended.kv_transfer_params = self.kv_transfer_params.pop(ended.request_id, None)
        self.kv_transfer_params.clear()  # of requests that were aborted: no answer reports them
        return outputs

    def update_draft_token_ids(self, draft_token_ids: Mapping[str, list[int]]) -> None:
        """See :meth:`Scheduler.update_draft_token_ids`; a token that was thrown away has no
        drafts."""
        sound = {i: drafts for i, drafts in draft_token_ids.items() if i not in self.rewound}
        super().update_draft_token_ids(sound)

    def _take_report(self, report: KVConnectorOutput) -> None:
        """Record which transfers are over, and free the blocks that no transfer needs any more."""
        self.connector.update_connector_output(report)
        for kind, ids in (("recv", report.finished_recving), ("send", report.finished_sending)):
            for request in transfers_over(self.transfers, ids, kind) if ids else ():
                self.kv_cache_manager.free(request)

    def check_integrity(self) -> None:
        """As the core's, and for the transfers."""
        held = self.transfers.held
        assert not held.keys() & self.requests.keys(), "a request is held and unfinished"
        known = self.requests.keys() | held.keys()
        tables = self.kv_cache_manager.req_to_blocks
        assert tables.keys() <= known, f"blocks of no request: {tables.keys() - known}"
        assert self.transfers.failed | self.transfers.arrived <= self.transfers.loading
        super().check_integrity()

    def _check_waiting(self, request: Request) -> None:
        """See :meth:`Scheduler._check_waiting`; blocks are held for KV that comes or came."""
        holds = request.request_id in self.kv_cache_manager.req_to_blocks
        assert holds == (request.num_computed_tokens > 0) or self._lost_all(request), (
            f"{request} holds blocks: {holds}"
        )
        loads = request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
        assert loads == (request.request_id in self.transfers.loading), f"{request}"

    def _lost_all(self, request: Request) -> bool:
        """A load that has failed from its first block on keeps its blocks until it is over."""
        return request.request_id in self.transfers.failed


class TransferReports(SchedulerExtension):
    """Keeps what the worker reports with a step until the scheduler takes the step in."""

    def __init__(self, connector: KVConnectorBase_V1) -> None:
        self.connector = connector
        self.report: KVConnectorOutput | None = None

    def step_done(self, output: SchedulerOutput, result: ModelRunnerOutput) -> set[str]:
        self.report = result.kv_connector_output
        return set()

    def take(self) -> KVConnectorOutput:
        """The report of the step that is taken in; an empty one if the step had none."""
        report, self.report = self.report, None
        return report or KVConnectorOutput()

    def reset(self) -> None:
        """The scheduler starts anew, and no transfer may use its former blocks."""
        self.report = None
        self.connector.reset()
