"""What the other schedulers share: they plan a step in their own order, and the rest is the core's.

A policy decides how many tokens each request computes. It does so on the same requests, the same
block pool and the same worker as the core's scheduler, so that runs can be laid side by side.
"""

from __future__ import annotations

import logging

from mini_vllm.core.interface import PauseState
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.scheduler_output import SchedulerOutput, StopCause
from mini_vllm.core.step_plan import StepPlan
from mini_vllm.request import Request, RequestStatus

logger = logging.getLogger(__name__)


class Policy(Scheduler):
    """A scheduler whose steps are filled by :meth:`fill`."""

    supports = frozenset({"grammar"})

    def schedule(self) -> SchedulerOutput:
        """Plan one step; see :meth:`Scheduler.schedule`, whose frame this is."""
        paused = self.pause_state == PauseState.PAUSED_ALL
        step = self.new_plan(0 if paused else self.scheduler_config.max_num_batched_tokens)
        if not paused:
            self._recall_skipped()
            self.fill(step)
            self._report_preempted(step)
        self._check_progress(step)
        output = self._make_output(step)
        self._advance_computed_tokens(output)
        return output

    def new_plan(self, token_budget: int) -> StepPlan:
        """An empty plan."""
        return StepPlan(token_budget, self.extensions)

    def fill(self, step: StepPlan) -> None:
        """Enter into ``step`` the requests that compute something in it."""
        raise NotImplementedError

    def prompt_limit(self) -> int:
        """Most tokens a request may have when it is admitted: whole prompts must fit a step."""
        return min(self.max_model_len, self.scheduler_config.max_num_batched_tokens)

    # ------------------------------------------------------------------ the waiting queue

    def _recall_skipped(self) -> None:
        """Requests that waited for something else, and have it now, go to the front of the
        queue."""
        ready = [request for request in self.skipped_waiting if self._may_admit(request)]
        self.skipped_waiting.remove_requests(ready)
        self.waiting.prepend_requests(reversed(ready))

    def _head(self) -> Request | None:
        """The next request to admit; requests in front of it that wait for something else are
        skipped.

        None if no request is waiting, or if admission is paused.
        """
        while self.waiting and self.pause_state == PauseState.UNPAUSED:
            request = self.waiting.peek_request()
            if self._may_admit(request):
                return request
            self.skipped_waiting.add_request(self.waiting.pop_request())
        return None

    def _admit(self, step: StepPlan, num_computed_tokens: int, num_new_tokens: int) -> None:
        """Move the head of the waiting queue, which has its blocks now, to ``running``."""
        request = self.waiting.pop_request()
        if request.num_preemptions == 0:
            request.num_cached_tokens = num_computed_tokens
        self.kv_cache_manager.prefix_cache_stats.record(request.num_tokens, num_computed_tokens)
        self._run(step, request, num_computed_tokens, num_new_tokens)

    def _run(
        self, step: StepPlan, request: Request, num_computed_tokens: int, num_new_tokens: int
    ) -> None:
        """Let a request that has its blocks run, and enter it in the plan with its whole table."""
        request.transition_to(RequestStatus.RUNNING)
        request.num_computed_tokens = num_computed_tokens
        self.running.append(request)
        block_ids = self.kv_cache_manager.get_block_ids(request.request_id)
        step.add_admitted(request, num_new_tokens, block_ids)

    def _refuse(self, request: Request, num_lookahead_tokens: int = 0) -> bool:
        """End a waiting request that no later step could admit. False: it only has to wait.

        It is longer than :meth:`prompt_limit`, or than the whole pool. It ends FINISHED_IGNORED,
        or FINISHED_LENGTH_CAPPED if it has run before and has output to keep. As in V0 the reason
        of both is "length", and a warning tells why there is no more.
        """
        num_slots = request.num_tokens
        if num_slots > (limit := self.prompt_limit()):
            request.stop_reason, setting = StopCause.PROMPT_LIMIT, "max_num_batched_tokens"
        elif (num_slots := min(num_slots + num_lookahead_tokens, self.max_model_len)) > (
            limit := self.kv_cache_manager.capacity_in_tokens
        ):
            request.stop_reason, setting = StopCause.KV_CAPACITY, "num_gpu_blocks"
        else:
            return False
        logger.warning(
            "request %r needs room for %d tokens, and %s has it for %d at most: it ends with "
            "finish_reason 'length'; raise %s, or send shorter prompts",
            request.request_id, num_slots, type(self).__name__, limit, setting,
        )  # fmt: skip
        status = RequestStatus.FINISHED_IGNORED
        if request.output_token_ids:
            status = RequestStatus.FINISHED_LENGTH_CAPPED
        self.finish_requests(request.request_id, status)
        self.capped.append(request)
        return True
