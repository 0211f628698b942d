"""Schedulers that break one rule each. Each is otherwise vLLM V1's."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.scheduler_output import SchedulerOutput
from mini_vllm.core.step_plan import StepPlan
from mini_vllm.policies.vllm_v0 import PreemptionMode, V0Options, VllmV0
from mini_vllm.request import Request, RequestStatus


class Honest(Scheduler):
    """Breaks none."""


class OverBudget(Scheduler):
    """Gives out twice the tokens."""

    def __init__(self, limits: SchedulerConfig, cache: CacheConfig) -> None:
        super().__init__(replace(limits, max_num_batched_tokens=10_000), cache)


class OverRows(Scheduler):
    """Runs more requests than there are rows."""

    def __init__(self, limits: SchedulerConfig, cache: CacheConfig) -> None:
        super().__init__(replace(limits, max_num_seqs=1000), cache)


class PretendsCached(Scheduler):
    """Says of every prompt that all but its last token is in the cache."""

    def _try_admit(self, step: StepPlan, request: Request) -> bool:
        admitted, name = super()._try_admit(step, request), request.request_id
        if admitted and step.num_scheduled_tokens[name] == request.num_tokens:
            step.num_scheduled_tokens[name] = 1
            request.num_computed_tokens = request.num_tokens - 1
        return admitted


class SharesBlocks(Scheduler):
    """Gives the second request the blocks of the first."""

    def schedule(self) -> SchedulerOutput:
        plan = super().schedule()
        new = plan.scheduled_new_reqs
        if len(new) > 1:
            new[1] = replace(new[1], block_ids=list(new[0].block_ids))
        return plan


class LosesBlocks(Scheduler):
    """Forgets to give the blocks of finished requests back."""

    def _free_request(self, request: Request) -> None:
        self.kv_cache_manager.req_to_blocks.pop(request.request_id, None)
        super()._free_request(request)


class EndsEarly(Scheduler):
    """Calls every request finished after its first token."""

    def check_stop(self, request: Request) -> RequestStatus | None:
        return RequestStatus.FINISHED_LENGTH_CAPPED


class Aborts(Scheduler):
    """Aborts waiting requests."""

    def schedule(self) -> SchedulerOutput:
        for request in list(self.waiting)[3:]:
            self.finish_requests(request.request_id, RequestStatus.FINISHED_ABORTED)
        return super().schedule()


class Idles(Scheduler):
    """Plans nothing, again and again."""

    def schedule(self) -> SchedulerOutput:
        return StepPlan(0).make_output(set())


class ForgetsToSwapIn(VllmV0):
    """Swaps blocks out, and never copies them back."""

    options = V0Options(preemption_mode=PreemptionMode.SWAP)

    def schedule(self) -> SchedulerOutput:
        plan = super().schedule()
        plan.blocks_to_swap_in.clear()
        return plan


class Raises(Scheduler):
    """Has a bug."""

    def schedule(self) -> SchedulerOutput:
        return self.no_such_thing  # type: ignore[attr-defined,no-any-return]


class Hangs(Scheduler):
    """Never comes back."""

    def schedule(self) -> SchedulerOutput:
        while True:
            pass


class Dies(Scheduler):
    """Takes its process with it."""

    def schedule(self) -> SchedulerOutput:
        os._exit(7)


class Prints(Scheduler):
    """Prints a lot, which must not be taken for an answer."""

    def schedule(self) -> SchedulerOutput:
        print('{"run": {}}')
        return super().schedule()


def not_a_scheduler(*_: Any) -> None:
    """A function."""
