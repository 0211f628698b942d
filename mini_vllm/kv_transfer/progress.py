"""What the scheduler's half of a connector tracks of its requests: their blocks, and which are
full.

Plans contain changes only; a connector that saves blocks, or promises them, needs whole tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from mini_vllm.core.scheduler_output import SchedulerOutput
from mini_vllm.request import Request


@dataclass(slots=True)
class Tracked:
    """A request that was admitted."""

    request: Request
    block_ids: list[int] = field(default_factory=list)
    num_saved: int = 0
    """Full blocks at its beginning that need not be saved any more."""


class RequestTracker:
    """Follows admitted requests from plan to plan."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.requests: dict[str, Tracked] = {}

    def admitted(self, request: Request, block_ids: list[int]) -> Tracked:
        """A request got blocks, for the first time or after a preemption."""
        known = self.requests.get(request.request_id)
        if known is None or known.request is not request:
            known = self.requests[request.request_id] = Tracked(request)
        known.block_ids = list(block_ids)
        return known

    def forget(self, request_id: str) -> None:
        self.requests.pop(request_id, None)

    def planned(self, output: SchedulerOutput) -> Iterator[tuple[Tracked, int]]:
        """The scheduled requests with the number of full blocks that each has after the step."""
        cached = output.scheduled_cached_reqs
        computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        computed |= {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        whole = cached.resumed_req_ids | {new.req_id for new in output.scheduled_new_reqs}
        for request_id, num_scheduled in output.num_scheduled_tokens.items():
            tracked = self.requests[request_id]
            new_ids = output.new_block_ids.get(request_id, [])
            tracked.block_ids = (
                list(new_ids) if request_id in whole else tracked.block_ids + new_ids
            )
            request = tracked.request
            # Drafts may be rejected: they fill no block.
            num_certain = min(computed[request_id] + num_scheduled, request.num_tokens)
            yield tracked, num_certain // self.block_size
