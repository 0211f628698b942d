"""Features that a replay pretends, as extensions of our scheduler."""

from __future__ import annotations

from typing import Any

from mini_vllm.core.extension import SchedulerExtension
from mini_vllm.request import Request, RequestStatus


class Grammars(SchedulerExtension):
    """Requests that wait for a grammar, each ready a number of steps after it came."""

    def __init__(self) -> None:
        self.wait: dict[str, int] = {}
        """Steps left, by request id."""

    def request_added(self, request: Request) -> None:
        if request.request_id in self.wait:
            request.transition_to(RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR)

    def is_ready(self, request: Request) -> bool:
        return self.wait.get(request.request_id) == 0

    def batch_inputs(self, output: Any) -> dict[str, Any]:
        self.wait = {i: max(steps - 1, 0) for i, steps in self.wait.items()}
        return {}

    def request_freed(self, request: Request) -> None:
        self.wait.pop(request.request_id, None)
