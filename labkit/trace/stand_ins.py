"""Features that a replay pretends: an extension of our scheduler, and a connector for it."""

from __future__ import annotations

from typing import Any

from labkit.trace.external import Report, Script
from mini_vllm.core.extension import SchedulerExtension
from mini_vllm.core.kv_cache_manager import KVCacheBlocks
from mini_vllm.core.scheduler_output import KVConnectorOutput
from mini_vllm.kv_transfer.base import KVConnectorBase_V1
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


class ScriptedConnector(KVConnectorBase_V1):
    """The scheduler's half of a connector that does what the trace says."""

    def __init__(self, script: Script, block_size: int) -> None:
        self.script = script
        self.block_size = block_size
        self.num_computed: dict[str, int] = {}

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        self.num_computed[request.request_id] = num_computed_tokens
        return self.script.answer(request.request_id, request.num_tokens, num_computed_tokens)

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        num_computed = self.num_computed.get(request.request_id, 0)
        ids = blocks.get_block_ids()
        size = self.block_size
        self.script.allocated(request.request_id, ids, num_external_tokens, num_computed, size)

    def request_finished(self, request: Request, block_ids: Any) -> tuple[bool, None]:
        return self.script.finished(request.request_id, list(block_ids)), None

    def reset(self) -> None:
        """A replay undoes no step."""


def connector_output(report: Report) -> KVConnectorOutput:
    return KVConnectorOutput(set(report.sent), set(report.received), report.invalid)
