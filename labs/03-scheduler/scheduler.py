"""The scheduler: at every step, which requests compute how many tokens.

There is no prefill phase and no decode phase. Every request has a number of tokens and a number
of *computed* tokens; a step hands out a budget of tokens so that the second number catches up
with the first. A long prompt is a wide gap, a decoding request a gap of one::

    r0  |########################|#|            1 token   (decoding)
    r1  |############............|:::::::::|    chunk of a prompt, cut to the budget
    r2  |------|::::::::::|                     new request, its prefix found in the cache
         computed              scheduled now

Source: vllm/v1/core/sched/scheduler.py#L64-L2337 (Scheduler) @ v0.22.1
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.encoder_cache_manager import EncoderCacheManager
from mini_vllm.core.extension import SchedulerExtension, overriding
from mini_vllm.core.integrity import Integrity
from mini_vllm.core.interface import NoProgressError, PauseState
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.profile_rules import ProfileRules, pool_for
from mini_vllm.core.request_queue import RequestQueue, create_request_queue
from mini_vllm.core.scheduler_output import EngineCoreOutput, SchedulerOutput, StopCause
from mini_vllm.core.step_plan import StepPlan
from mini_vllm.errors import RequestFailure
from mini_vllm.request import Request, RequestStatus


class Scheduler(ProfileRules, Integrity):
    """Decides, step by step, which requests compute how many tokens in which blocks.

    One step is ``schedule()``, a forward pass, ``update_from_output()``. The scheduler owns the
    order and the budget; the :class:`KVCacheManager` owns the blocks. The seam between them is
    ``allocate_slots``, and its ``None`` means that a request must be preempted.

    Args:
        scheduler_config: budget, limits and policy.
        cache_config: the block pool; ``num_gpu_blocks`` must be set.
        extensions: see :class:`~mini_vllm.core.extension.SchedulerExtension`.
        hash_root: fixed parent of all first blocks' hashes; None: random.

    Raises:
        ValueError: if ``cache_config.num_gpu_blocks`` is None.
    """

    supports: ClassVar[frozenset[str]] = frozenset(
        {"drafts", "encoder", "connector", "grammar", "pp", "async", "groups"}
    )
    """Features that a scheduler can serve; those of :mod:`mini_vllm.policies` can serve fewer."""

    def __init__(
        self,
        scheduler_config: SchedulerConfig,
        cache_config: CacheConfig,
        extensions: Sequence[SchedulerExtension] = (),
        hash_root: bytes | None = None,
    ) -> None:
        if cache_config.num_gpu_blocks is None:
            raise ValueError("num_gpu_blocks is None; pass a number or let the engine measure it")
        self.scheduler_config = scheduler_config
        self.cache_config = cache_config
        self.max_model_len = scheduler_config.max_model_len
        self.extensions = tuple(extensions)
        self.kv_cache_manager = KVCacheManager(
            cache_config.num_gpu_blocks,
            cache_config.block_size,
            self.max_model_len,
            cache_config.enable_prefix_caching,
            hash_root,
        )
        self.rules = scheduler_config.rules
        self.kv_cache_manager.block_pool = pool_for(self.rules, self.kv_cache_manager.block_pool)
        self.requests: dict[str, Request] = {}
        """All unfinished requests, by id."""
        self.long_prefill_cap = self._cap_of_step()
        self.running: list[Request] = []
        """Those that hold blocks, in the order of their admission."""
        self.waiting: RequestQueue = create_request_queue(scheduler_config.policy)
        self.skipped_waiting: RequestQueue = create_request_queue(scheduler_config.policy)
        """Requests that were skipped because they wait for something other than blocks; checked
        again in every step."""
        self.finished_req_ids: set[str] = set()
        """Ids of requests that finished since the last plan; the next plan reports them to the
        worker."""
        self.capped: list[Request] = []
        """Finished inside schedule() because they outgrew the pool; reported by the update."""
        self.tokens_at_admission: dict[str, int] = {}
        """Tokens that a request had when it was last admitted. While it has no more, all that was
        scheduled of it were chunks of its prompt, and nothing can be guessed to follow them."""
        self.pause_state = PauseState.UNPAUSED
        self.async_scheduling = bool(scheduler_config.async_scheduling)
        """Whether a step may be planned before the tokens of the step before are known."""
        self.max_concurrent_batches = 2 if self.async_scheduling else 1
        """Plans that may be on their way at once, the newest included."""
        self.num_empty_plans = 0
        """Plans without tokens in a row, the newest included. A few of them may wait for a plan in
        flight."""
        self.encoder_cache_manager: EncoderCacheManager | None = None
        """Counts the image embeddings that the worker keeps; None if requests cannot have images
        (phase 13)."""

    # ------------------------------------------------------------------ requests in and out

    def add_request(self, request: Request) -> None:
        """Queue a new request.

        Raises:
            ValueError: if an unfinished request has the same id.
        """
        if request.request_id in self.requests:
            raise ValueError(
                f"request id {request.request_id!r} is in use by an unfinished request; "
                "ids must be unique; choose another"
            )
        for extension in self.extensions:
            extension.request_added(request)
        if self.cache_config.enable_prefix_caching:
            request.set_block_hasher(self.kv_cache_manager.block_hasher)
        self.requests[request.request_id] = request
        apart = not self.rules.skipped_keep_their_queue and RequestStatus.is_blocked(request.status)
        (self.skipped_waiting if apart else self.waiting).add_request(request)

    def finish_requests(
        self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus
    ) -> list[str]:
        """End requests from outside: an abort, or an error. None means all of them.

        Returns:
            The ids of those that were unfinished until now; unknown ids are ignored.

        Raises:
            ValueError: if ``finished_status`` is not a finished one.

        Source: vllm/v1/core/sched/scheduler.py#L1779-L1840 (Scheduler.finish_requests) @ v0.22.1
        """
        if not RequestStatus.is_finished(finished_status):
            raise ValueError(f"{finished_status} is not a finished status; use a FINISHED_ one")
        if request_ids is None:
            request_ids = list(self.requests)
        elif isinstance(request_ids, str):
            request_ids = [request_ids]
        found = [self.requests[i] for i in dict.fromkeys(request_ids) if i in self.requests]
        self._finish(dict.fromkeys(found, finished_status))
        return [request.request_id for request in found]

    def _finish(self, statuses: Mapping[Request, RequestStatus]) -> None:
        """Finish requests, each with its status, together: ``running`` is filtered once."""
        if statuses:
            self._remove_from_queues(statuses)
        for request, status in statuses.items():
            request.transition_to(status)
            self._free_request(request)

    def _remove_from_queues(self, requests: Iterable[Request]) -> None:
        running = {r for r in requests if r.status == RequestStatus.RUNNING}
        others = [r for r in requests if r not in running]
        if running:
            self.running = [request for request in self.running if request not in running]
        if others:
            self.waiting.remove_requests(others)
            self.skipped_waiting.remove_requests(others)

    def _free_request(self, request: Request) -> None:
        """Let go of all that a finished request holds."""
        assert request.is_finished, f"{request} has not finished"
        self.kv_cache_manager.free(request)
        for extension in self.extensions:
            extension.request_freed(request)
        self.finished_req_ids.add(request.request_id)
        self.tokens_at_admission.pop(request.request_id, None)
        del self.requests[request.request_id]

    # ------------------------------------------------------------------ one step

    def schedule(self) -> SchedulerOutput:
        """Plan one step: first the running requests, then, if none was preempted, waiting ones.

        ``num_computed_tokens`` advances here, not after the forward pass, so that the next
        step can be planned while this one still runs. Only rejected drafts are taken back.

        With ``async_scheduling`` it may be called once more before the
        :meth:`update_from_output` of the plan before: see :meth:`_late_tokens`.

        Raises:
            NoProgressError: if nothing can be scheduled now or in any later step.

        Source: vllm/v1/core/sched/scheduler.py#L329-L922 (Scheduler.schedule) @ v0.22.1
        """
        paused = self.pause_state == PauseState.PAUSED_ALL
        token_budget = 0 if paused else self.scheduler_config.max_num_batched_tokens
        step = StepPlan(token_budget, self.extensions)
        self.long_prefill_cap = self._cap_of_step()
        self._schedule_running(step)
        self._report_preempted(step)
        waiting = self.waiting or self.skipped_waiting
        if waiting and not step.preempted and self.pause_state == PauseState.UNPAUSED:
            self._schedule_waiting(step)
            self._return_skipped()
        self._check_progress(step)
        output = self._make_output(step)
        self._advance_computed_tokens(output)
        return output

    def _clamp_new_tokens(
        self, num_new_tokens: int, num_computed_tokens: int, token_budget: int
    ) -> int:
        """Cut the tokens that a running request still needs to what this step allows.

        In this order: at most ``long_prefill_token_threshold`` (0: no such cap), at most
        ``token_budget``, and no token at or beyond position ``max_model_len - 1``, for the
        last token of a full-length sequence is sampled but never computed. ``long_prefill_cap`` is
        that threshold, as the profile counts it.

        Returns:
            The tokens to schedule; 0 if there are none.

        Source: vllm/v1/core/sched/scheduler.py#L385-L398 (Scheduler.schedule) @ v0.22.1
        """
        # TODO 03.2
        raise NotImplementedError(
            "TODO 03.2: write Scheduler._clamp_new_tokens in labs/03-scheduler/scheduler.py"
            " (phase 03, 02-mini-build.md#task-2)"
        )

    def _schedule_running(self, step: StepPlan) -> None:
        """Give every running request its next tokens, in order of admission.

        For each: clamp (:meth:`_clamp_new_tokens`), let every extension limit the tokens, and
        with 0 tokens go on to the next. Allocate, with ``num_lookahead_tokens`` of the config,
        and enter it in ``step``. While there are too few blocks, preempt a victim and try again,
        unless the request outgrows the whole pool (:meth:`_cap_if_too_large` has ended it then).
        A victim that was in the plan already leaves it (:meth:`_refund`), and the position in
        ``running`` moves down with it. If the victim is the request itself, the pass is over.

        With ``async_scheduling``, a request all of whose known tokens are computed may get a token
        all the same (:meth:`_late_tokens`).

        Source: vllm/v1/core/sched/scheduler.py#L364-L533 (Scheduler.schedule) @ v0.22.1
        """
        # TODO 03.4
        raise NotImplementedError(
            "TODO 03.4: write Scheduler._schedule_running in labs/03-scheduler/scheduler.py"
            " (phase 03, 02-mini-build.md#task-4)"
        )

    def _late_tokens(self, request: Request) -> int:
        """Tokens to compute of a request whose newest token is still being sampled: that one.

        The scheduler need not know which token it is, for the worker does. But it must not ask for
        one token too many: the last that ``max_tokens`` permits is sampled and never computed. An
        EOS cannot be foreseen, and then the step computes one token for nothing.

        ::

            known        | prompt | a b |            max_tokens 4: two more may come
            placeholder  |        |     | ? |        one is on its way: compute it, sample the last

        Source: vllm/v1/core/sched/scheduler.py#L369-L387 (Scheduler.schedule) @ v0.22.1
        """
        num_placeholders = request.num_output_placeholders
        wanted = request.num_tokens + num_placeholders
        if request.max_tokens is not None:
            wanted = min(wanted, request.num_prompt_tokens + request.max_tokens - 1)
        return wanted - request.num_computed_tokens

    def _pick_victim(self) -> Request:
        """The running request to preempt.

        Under "fcfs" the one admitted last. Under "priority" the one with the largest
        ``(priority, arrival_time)``, the first of them if several are equal, even if it has
        been scheduled in this very step.

        Source: vllm/v1/core/sched/scheduler.py#L455-L481 (Scheduler.schedule) @ v0.22.1
        """
        # TODO 03.3
        raise NotImplementedError(
            "TODO 03.3: write Scheduler._pick_victim in labs/03-scheduler/scheduler.py"
            " (phase 03, 02-mini-build.md#task-3)"
        )

    def _refund(self, step: StepPlan, victim: Request, index: int = 0) -> bool:
        """Take a victim out of the plan, and give its tokens back to the budget.

        Blocks that this step was to fill are findable already, but now they are never filled.

        Returns:
            Whether the victim was in the plan. With a profile: whether position ``index`` of
            ``running`` moves down.
        """
        refunded = step.refund(victim)
        if refunded and self.scheduler_config.uncache_refunded_blocks:
            self.kv_cache_manager.uncache_blocks(victim, victim.num_computed_tokens)
        step.report_preempted(victim, was_in_plan=refunded)
        return self._moves_position(victim, index, refunded)

    def _report_preempted(self, step: StepPlan) -> None:
        """Report the victims to the extensions that :meth:`_refund` has not reported: they were not
        in the plan."""
        for victim in step.preempted:
            step.report_preempted(victim, was_in_plan=False)

    def _preempt(self, request: Request) -> None:
        """Take a running request's blocks, and move the request back to the waiting queue.

        It leaves ``running``. Its blocks are free for other requests in this same step. Its count
        of computed tokens becomes 0 and its drafts are dropped, but it keeps its output. The
        preemption is counted. It then waits in front of requests that have never run
        (``prepend_request``).

        Source: vllm/v1/core/sched/scheduler.py#L929-L949 (Scheduler._preempt_request) @ v0.22.1
        """
        # TODO 03.3
        raise NotImplementedError(
            "TODO 03.3: write Scheduler._preempt in labs/03-scheduler/scheduler.py"
            " (phase 03, 02-mini-build.md#task-3)"
        )

    def _schedule_waiting(self, step: StepPlan) -> None:
        """Admit waiting requests in order, as long as budget, rows and blocks last.

        A request that waits for something other than blocks, or that an extension holds back, is
        skipped and checked again in the next step. A request whose blocks cannot be allocated ends
        the pass, even if a smaller request behind it would fit: no request is overtaken, and none
        is preempted for it.

        Source: vllm/v1/core/sched/scheduler.py#L544-L823 (Scheduler.schedule) @ v0.22.1
        """
        # TODO 03.6
        raise NotImplementedError(
            "TODO 03.6: write Scheduler._schedule_waiting in labs/03-scheduler/scheduler.py"
            " (phase 03, 02-mini-build.md#task-6)"
        )

    def _next_queue(self) -> RequestQueue | None:
        """The queue to admit from next: that of skipped requests first; under "priority" the queue
        with the smaller head, and that of skipped requests if the heads are equal.

        Source: vllm/v1/core/sched/scheduler.py#L1619-L1629
        (Scheduler._select_waiting_queue_for_scheduling) @ v0.22.1
        """
        # TODO 03.6
        raise NotImplementedError(
            "TODO 03.6: write Scheduler._next_queue in labs/03-scheduler/scheduler.py"
            " (phase 03, 02-mini-build.md#task-6)"
        )

    def _may_admit(self, request: Request) -> bool:
        """Whether only budget and blocks keep ``request`` waiting."""
        if RequestStatus.is_blocked(request.status):
            if not any(extension.is_ready(request) for extension in self.extensions):
                return False
            request.transition_to(RequestStatus.WAITING)
        gates, running = overriding(self.extensions, "may_admit"), self.running
        if gates and self.async_scheduling:  # a request at its last token takes no further step
            running = [other for other in running if not self._is_ending(other)]
        return all(extension.may_admit(request, running) for extension in gates)

    def _is_ending(self, request: Request) -> bool:
        """Whether the last token that a request may have is being sampled."""
        num_computed = request.num_computed_tokens
        if num_computed < request.num_tokens_with_spec:
            return False
        return self._clamp_new_tokens(self._late_tokens(request), num_computed, 1) == 0

    def _try_admit(self, step: StepPlan, request: Request) -> bool:
        """Move a waiting request to ``running`` if its tokens fit the step and its blocks are free.

        The prefix cache says how many tokens are computed already. The rest, which for a
        resumed request includes its output, is cut to the threshold and the budget; with
        chunked prefill off it must fit the budget whole. Then ``allocate_slots`` decides. It gets
        no lookahead slots: before the first token nothing can be drafted. Profiles and options add
        their own arguments (:meth:`_at_admission`).

        Returns:
            False, with nothing changed, if it has to wait. The caller removes it from its queue.

        Source: vllm/v1/core/sched/scheduler.py#L591-L804 (Scheduler.schedule) @ v0.22.1
        """
        # TODO 03.5
        raise NotImplementedError(
            "TODO 03.5: write Scheduler._try_admit in labs/03-scheduler/scheduler.py"
            " (phase 03, 02-mini-build.md#task-5)"
        )

    def _cap_if_too_large(self, request: Request, num_lookahead_tokens: int = 0) -> bool:
        """End a request that not even the empty pool could hold, instead of retrying for ever.

        It ends FINISHED_LENGTH_CAPPED with the stop reason "kv_capacity" and keeps its output.
        Upstream lets it wait for ever, and with it all requests behind it.
        """
        num_tokens = min(request.num_tokens + num_lookahead_tokens, self.max_model_len)
        if num_tokens <= self.kv_cache_manager.capacity_in_tokens:
            return False
        request.stop_reason = StopCause.KV_CAPACITY
        self.finish_requests(request.request_id, RequestStatus.FINISHED_LENGTH_CAPPED)
        self.capped.append(request)
        return True

    def _check_progress(self, step: StepPlan) -> None:
        """Raise an error if no later step can schedule anything: otherwise the caller would loop
        for ever."""
        if step.num_scheduled_tokens or step.preempted or self.capped or self.pause_state:
            self.num_empty_plans = 0
            return
        if any(request.num_computed_tokens >= request.num_tokens for request in self.running):
            return  # their next tokens are still being sampled
        self.num_empty_plans += 1
        if self.num_empty_plans < self.max_concurrent_batches:
            return  # a plan that is on its way may free what this one lacked: an image, a slot
        if self.running:
            raise NoProgressError(
                f"{self.running[0]} is running but may compute nothing more: max_model_len is "
                f"{self.max_model_len}; abort it, or send shorter prompts"
            )
        for request in (*self.skipped_waiting, *self.waiting):
            if not RequestStatus.is_blocked(request.status) and self._may_admit(request):
                config = self.scheduler_config
                if request.num_tokens <= config.max_num_batched_tokens:
                    raise NoProgressError(
                        f"no request is running, and {request} is not admitted, though its tokens "
                        f"fit max_num_batched_tokens={config.max_num_batched_tokens}: an extension "
                        "or the KV cache refuses it at every step; abort it"
                    )
                chunks, remedy = "on", " or raise the budget"
                if not config.enable_chunked_prefill:
                    chunks, remedy = "off", ", raise the budget or switch chunked prefill on"
                raise NoProgressError(
                    f"{request} can never be admitted: max_num_batched_tokens is "
                    f"{config.max_num_batched_tokens} and chunked prefill is {chunks}; abort it"
                    f"{remedy}"
                )

    def _make_output(self, step: StepPlan) -> SchedulerOutput:
        """The finished plan, with what the extensions add to it."""
        for request in (*step.new, *step.resumed):
            self.tokens_at_admission[request.request_id] = request.num_tokens
        output = step.make_output(self.finished_req_ids)
        for extension in self.extensions:
            output.extra.update(extension.batch_inputs(output))
        return output

    def _advance_computed_tokens(self, output: SchedulerOutput) -> None:
        """Count the scheduled tokens as computed, and clear the finished ids, which this plan
        reports.

        Source: vllm/v1/core/sched/scheduler.py#L951-L991 (Scheduler._update_after_schedule)
        @ v0.22.1
        """
        # TODO 03.4
        raise NotImplementedError(
            "TODO 03.4: write Scheduler._advance_computed_tokens in labs/03-scheduler/scheduler.py"
            " (phase 03, 02-mini-build.md#task-4)"
        )

    # ------------------------------------------------------------------ after the forward pass

    def update_from_output(
        self, output: SchedulerOutput, sampled_token_ids: Mapping[str, list[int]]
    ) -> list[EngineCoreOutput]:
        """Take in what the forward pass of ``output`` has sampled.

        For every scheduled request that is still unfinished: take back ``num_computed_tokens``
        for rejected drafts, append its tokens one by one until one of them ends it
        (:meth:`check_stop`; tokens after that are dropped), and free it if it has ended. All that
        end in a step are finished together (:meth:`_finish`).

        Args:
            output: the plan that was executed.
            sampled_token_ids: new tokens by request id; empty or absent while a prompt is not
                fully computed; with k drafts, between 1 and k + 1 tokens.

        Returns:
            One output per request that got tokens or ended, in the order of the plan.

        Source: vllm/v1/core/sched/scheduler.py#L1283-L1592 (Scheduler.update_from_output)
        @ v0.22.1
        """
        # TODO 03.8
        raise NotImplementedError(
            "TODO 03.8: write Scheduler.update_from_output in labs/03-scheduler/scheduler.py"
            " (phase 03, 02-mini-build.md#task-8)"
        )

    def _publish(self, request: Request) -> None:
        """Make those blocks findable that the newest tokens have completed.

        ``allocate_slots`` could not do it: when a late token was scheduled, its id was unknown, and
        a block is found by its tokens. Call it before the request is freed: a freed request has no
        blocks.

        Source: vllm/v1/core/sched/async_scheduler.py#L56-L60
        (AsyncScheduler._update_request_with_output) @ v0.22.1
        """
        num_known = request.num_computed_tokens - request.num_output_placeholders
        self.kv_cache_manager.cache_tokens(request, num_known)

    def _append_until_stop(self, request: Request, token_ids: list[int]) -> RequestStatus | None:
        """Append tokens up to the first that ends the request; the rest is cut from the list.

        Source: vllm/v1/core/sched/scheduler.py#L1649-L1665
        (Scheduler._update_request_with_output) @ v0.22.1
        """
        # TODO 03.7
        raise NotImplementedError(
            "TODO 03.7: write Scheduler._append_until_stop in labs/03-scheduler/scheduler.py"
            " (phase 03, 02-mini-build.md#task-7)"
        )

    def check_stop(self, request: Request) -> RequestStatus | None:
        """Which finished status, if any, the request's newest token brings; it sets nothing but
        ``stop_reason``.

        ==============================  ======================  ===================
        the newest token ...            status                  after min_tokens
        ==============================  ======================  ===================
        is the EOS token                FINISHED_STOPPED        only
        is one of ``stop_token_ids``    FINISHED_STOPPED        only; stop_reason: the token
        fills ``max_model_len``         FINISHED_LENGTH_CAPPED  always
        is number ``max_tokens``        FINISHED_LENGTH_CAPPED  always
        ==============================  ======================  ===================

        With ``rules.stop_ignores_min_tokens`` the last column says "always" in every row: such
        tokens are masked while sampling.
        An EOS on the last permitted token is a stop. Upstream asks for ``min_tokens`` first of
        all, so there a length cap below it is never seen and the request runs for ever.

        Source: vllm/v1/core/sched/utils.py#L94-L130 (check_stop) @ v0.22.1
        """
        # TODO 03.7
        raise NotImplementedError(
            "TODO 03.7: write Scheduler.check_stop in labs/03-scheduler/scheduler.py"
            " (phase 03, 02-mini-build.md#task-7)"
        )

    def update_draft_token_ids(self, draft_token_ids: Mapping[str, list[int]]) -> None:
        """Store the drafts of a proposer for the next step.

        Drafts after a chunk of a prompt are dropped, even if the chunk ends one token before the
        prompt does: nothing was sampled there, so no draft can follow. Extensions may shorten the
        drafts, one after the other.

        Source: vllm/v1/core/sched/scheduler.py#L1691-L1711 (Scheduler.update_draft_token_ids)
        @ v0.22.1
        """
        for request_id, token_ids in draft_token_ids.items():
            request = self.requests.get(request_id)
            if request is None or request.status != RequestStatus.RUNNING:
                continue
            drafts = list(token_ids)
            if request.num_tokens == self.tokens_at_admission.get(request_id):
                drafts = []
            for extension in self.extensions:
                drafts = extension.limit_drafts(request, drafts)
            request.spec_token_ids = drafts

    def fail_requests(
        self, output: SchedulerOutput, reasons: Mapping[str, RequestFailure | str]
    ) -> list[EngineCoreOutput]:
        """End requests whose part of a step has failed, with FINISHED_ERROR.

        Their blocks leave the prefix cache from the first token of this step on: they were made
        findable before they were computed, and no lookup may find what was never written.

        Args:
            output: the plan that failed, wholly or for some of its requests.
            reasons: what went wrong, by request id.

        Returns:
            One output for each of them that was unfinished.
        """
        failed = [self.requests[i] for i in reasons if i in self.requests]
        for request in failed:
            num_valid = output.num_computed_tokens(request.request_id)
            self.kv_cache_manager.uncache_blocks(request, num_valid)
            request.failure = RequestFailure.of(reasons[request.request_id])
        self._finish(dict.fromkeys(failed, RequestStatus.FINISHED_ERROR))
        return [EngineCoreOutput.last(request, [], request.status) for request in failed]

    # ------------------------------------------------------------------ questions

    def has_unfinished_requests(self) -> bool:
        return bool(self.requests)

    def has_requests(self) -> bool:
        """Whether another step is due: for requests, or to report finished ones to the worker.

        Source: vllm/v1/core/sched/interface.py#L185-L188 (SchedulerInterface.has_requests)
        @ v0.22.1
        """
        return bool(self.requests or self.finished_req_ids or self.capped)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached KV; False, with nothing done, while requests hold blocks."""
        return self.kv_cache_manager.reset_prefix_cache()
