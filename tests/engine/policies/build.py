"""The shadow engine of the core's tests, for schedulers that swap, fork and ignore."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.extension import SchedulerExtension
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.scheduler_output import SchedulerOutput
from mini_vllm.policies.vllm_v0 import VllmV0
from mini_vllm.request import Request, RequestStatus
from tests.engine.core.shadow import Row, ShadowEngine, ShadowWorker


class SwappingWorker(ShadowWorker):
    """A shadow worker that moves blocks between device and host, and copies them.

    Attributes:
        host_slots: slot index on the host -> the row it holds.
    """

    def __init__(self, num_gpu_blocks: int, block_size: int, num_cpu_blocks: int) -> None:
        super().__init__(num_gpu_blocks, block_size)
        self.num_cpu_blocks = num_cpu_blocks
        self.host_slots: dict[int, Row] = {}

    def learn(self, output: SchedulerOutput) -> None:
        """As a real worker: the states first, then the blocks, before anything is written."""
        super().learn(output)
        for _, host_block in output.blocks_to_swap_out:
            assert 0 <= host_block < self.num_cpu_blocks
        self._copy(self.slots, self.host_slots, output.blocks_to_swap_out)
        self._copy(self.host_slots, self.slots, output.blocks_to_swap_in)
        self._copy(self.slots, self.slots, output.blocks_to_copy)

    def _copy(
        self, source: dict[int, Row], target: dict[int, Row], pairs: Sequence[tuple[int, int]]
    ) -> None:
        """Read all blocks, then write all."""
        size = self.block_size
        moved = [
            (to * size + offset, source.get(start * size + offset))
            for start, to in pairs
            for offset in range(size)
        ]
        for slot, row in moved:
            target.pop(slot, None)
            if row is not None:
                target[slot] = row


class PolicyEngine(ShadowEngine):
    """Any of our schedulers on shadow KV, checked after every step."""

    def __init__(
        self,
        scheduler_cls: Callable[..., Scheduler],
        scheduler_config: SchedulerConfig,
        cache_config: CacheConfig,
        extensions: Sequence[SchedulerExtension] = (),
        num_drafts: int = 0,
    ) -> None:
        super().__init__(
            scheduler_config, cache_config, extensions, num_drafts, scheduler_cls=scheduler_cls
        )
        assert cache_config.num_gpu_blocks is not None
        self.worker: SwappingWorker = SwappingWorker(
            cache_config.num_gpu_blocks, cache_config.block_size, cache_config.num_cpu_blocks
        )

    def swapped(self) -> list[Request]:
        """The members of the swapped queue, for schedulers that have one."""
        if not isinstance(self.scheduler, VllmV0):
            return []
        return [request for group in self.scheduler.swapped for request in group]

    def check_pressure(self, output: SchedulerOutput) -> None:
        """V0's chunked policy starts prompts in a step that preempts; no request resumes in it."""
        if not isinstance(self.scheduler, VllmV0):
            super().check_pressure(output)
        back = output.scheduled_cached_reqs.resumed_req_ids
        assert not back & set(output.preempted_req_ids)
        assert not output.blocks_to_swap_in

    def check_plan(self, output: SchedulerOutput) -> None:
        super().check_plan(output)
        self.counts["swapped out"] += bool(output.blocks_to_swap_out)
        self.counts["swapped in"] += bool(output.blocks_to_swap_in)
        self.counts["copies"] += len(output.blocks_to_copy)

    def _check_conservation(self) -> None:
        """T-CONS: exactly one of running, waiting, swapped; swapped is a queue, not a status."""
        scheduler = self.scheduler
        places = [*scheduler.running, *scheduler.waiting, *scheduler.skipped_waiting]
        places += self.swapped()
        assert sorted(r.request_id for r in places) == sorted(scheduler.requests)
        assert len(scheduler.running) <= scheduler.scheduler_config.max_num_seqs
        for request_id, expected in self.expected.items():
            assert expected.request.is_finished == (request_id not in scheduler.requests)
            is_running = expected.request.status == RequestStatus.RUNNING
            assert is_running == (expected.request in scheduler.running)

    def _check_result(self, request_id: str) -> None:
        """T-STOP; and a refused request is longer than a limit that no step could lift."""
        request = self.expected[request_id].request
        config, manager = self.scheduler.scheduler_config, self.scheduler.kv_cache_manager
        reason = request.stop_reason
        if reason not in ("prompt_limit", "kv_capacity") or type(self.scheduler) is Scheduler:
            super()._check_result(request_id)
            return
        self.counts[reason] += 1
        ignored = request.status == RequestStatus.FINISHED_IGNORED
        assert ignored or request.status == RequestStatus.FINISHED_LENGTH_CAPPED
        assert not (ignored and request.output_token_ids)
        if reason == "prompt_limit":
            assert request.num_tokens > config.max_num_batched_tokens
        else:
            lookahead = config.num_lookahead_tokens
            if isinstance(self.scheduler, VllmV0):
                lookahead = self.scheduler._num_lookahead_slots(is_prefill=False)
            assert request.num_tokens + lookahead > manager.capacity_in_tokens
        expected = self.expected[request_id]
        assert request.output_token_ids == expected.got == expected.tokens[: len(expected.got)]

    def check_drained(self) -> None:
        super().check_drained()
        assert not self.swapped()
        if isinstance(self.scheduler, VllmV0):
            free = self.scheduler.kv_cache_manager.free_host_blocks
            assert len(free) == self.worker.num_cpu_blocks
            assert not self.scheduler.groups._members
