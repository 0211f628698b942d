"""The plan of one step while the scheduler is still making it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mini_vllm.core.extension import SchedulerExtension, overriding
from mini_vllm.core.kv_cache_manager import KVCacheBlocks
from mini_vllm.core.scheduler_output import CachedRequestData, NewRequestData, SchedulerOutput
from mini_vllm.request import Request


@dataclass(slots=True)
class StepPlan:
    """Tokens and blocks of each request, and what is left of the budget."""

    token_budget: int
    extensions: Sequence[SchedulerExtension] = ()
    """Extensions that are told what happens to a request."""
    num_scheduled_tokens: dict[str, int] = field(default_factory=dict)
    new_block_ids: dict[str, list[int]] = field(default_factory=dict)
    spec_decode_tokens: dict[str, list[int]] = field(default_factory=dict)
    running: list[Request] = field(default_factory=list)
    new: list[Request] = field(default_factory=list)
    resumed: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    reported: list[Request] = field(default_factory=list)
    """The preempted ones that the extensions were called for."""
    listening: Sequence[SchedulerExtension] = field(init=False)
    """Extensions that override ``scheduled``, which is called for every entry."""

    def __post_init__(self) -> None:
        self.listening = overriding(self.extensions, "scheduled")

    def add_running(self, request: Request, num_new_tokens: int, blocks: KVCacheBlocks) -> None:
        """Enter a running request, with as many of its drafts as its tokens cover."""
        self.running.append(request)
        self.num_scheduled_tokens[request.request_id] = num_new_tokens
        self.token_budget -= num_new_tokens
        if blocks.blocks:
            self.new_block_ids[request.request_id] = blocks.get_block_ids()
        if request.spec_token_ids:
            num_drafts = request.num_computed_tokens + num_new_tokens - request.num_tokens
            if num_drafts > 0:
                drafts = request.spec_token_ids[:num_drafts]
                self.spec_decode_tokens[request.request_id] = drafts
            request.spec_token_ids = []  # the proposer brings new ones for the next step
        if self.listening:
            self._report_scheduled(request, num_new_tokens)

    def add_admitted(self, request: Request, num_new_tokens: int, block_ids: list[int]) -> None:
        """Enter a new or resumed request with its whole block table."""
        (self.resumed if request.num_preemptions else self.new).append(request)
        self.num_scheduled_tokens[request.request_id] = num_new_tokens
        self.token_budget -= num_new_tokens
        self.new_block_ids[request.request_id] = block_ids
        if self.listening:
            self._report_scheduled(request, num_new_tokens)

    def _report_scheduled(self, request: Request, num_new_tokens: int) -> None:
        for extension in self.listening:
            extension.scheduled(request, num_new_tokens)

    def report_preempted(self, request: Request, was_in_plan: bool) -> None:
        """Tell the extensions, once, that a request has lost its blocks."""
        if self.extensions and request not in self.reported:
            self.reported.append(request)
            for extension in self.extensions:
                extension.preempted(request, was_in_plan)

    def refund(self, request: Request) -> bool:
        """Undo :meth:`add_running` for a request that is preempted after all.

        Returns:
            Whether it was in the plan.
        """
        num_tokens = self.num_scheduled_tokens.pop(request.request_id, 0)
        if num_tokens == 0:
            return False
        self.token_budget += num_tokens
        self.new_block_ids.pop(request.request_id, None)
        self.spec_decode_tokens.pop(request.request_id, None)
        self.running.remove(request)
        return True

    def make_output(self, finished_req_ids: set[str]) -> SchedulerOutput:
        """Write the plan down for the worker: new requests in full, the others as deltas.

        Source: vllm/v1/core/sched/scheduler.py#L1036-L1094 (Scheduler._make_cached_request_data)
        @ v0.22.1
        """
        counts = self.num_scheduled_tokens
        known = self.running + self.resumed if self.resumed else self.running
        admits = self.new or self.resumed  # if not, the plan has the running ids, in this order
        return SchedulerOutput(
            scheduled_new_reqs=[
                NewRequestData.from_request(request, self.new_block_ids[request.request_id])
                for request in self.new
            ],
            scheduled_cached_reqs=CachedRequestData(
                req_ids=[request.request_id for request in known] if admits else list(counts),
                num_computed_tokens=[request.num_computed_tokens for request in known],
                resumed_req_ids={request.request_id for request in self.resumed},
                all_token_ids={r.request_id: list(r.all_token_ids) for r in self.resumed},
            ),
            num_scheduled_tokens=counts,
            total_num_scheduled_tokens=sum(counts.values()),
            scheduled_spec_decode_tokens=self.spec_decode_tokens,
            new_block_ids=self.new_block_ids,
            preempted_req_ids=[request.request_id for request in self.preempted],
            finished_req_ids=finished_req_ids,
        )
