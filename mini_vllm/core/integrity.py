"""Invariants of a scheduler between two calls; tests check them after each step."""

from __future__ import annotations

from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.request_queue import RequestQueue
from mini_vllm.request import Request, RequestStatus


class Integrity:
    """The part of the scheduler that checks its invariants."""

    scheduler_config: SchedulerConfig
    cache_config: CacheConfig
    kv_cache_manager: KVCacheManager
    requests: dict[str, Request]
    running: list[Request]
    waiting: RequestQueue
    skipped_waiting: RequestQueue
    async_scheduling: bool

    def check_integrity(self) -> None:
        """Raise AssertionError unless queues, statuses, blocks and limits agree."""
        waiting = self._all_waiting()
        queued = [request.request_id for request in (*self.running, *waiting)]
        known = self.requests
        assert sorted(queued) == sorted(known), (
            "each unfinished request must be in exactly one queue, and no other request in any; "
            "wrong: "
            f"{[i for i in sorted({*queued, *known}) if i not in known or queued.count(i) != 1]}"
        )
        assert len(self.running) <= self.scheduler_config.max_num_seqs
        for request in self.running:
            assert request.status == RequestStatus.RUNNING, f"{request} is in running"
            held = self.kv_cache_manager.req_to_blocks[request.request_id]
            slots = len(held) * self.cache_config.block_size
            assert request.num_computed_tokens <= slots, f"{request} has {slots} slots"
            self._check_computed(request)
        for request in waiting:
            assert request.status != RequestStatus.RUNNING, f"{request} is waiting"
            self._check_waiting(request)
        self.kv_cache_manager.check_integrity(self.running)

    def _all_waiting(self) -> list[Request]:
        """The unfinished requests that do not run."""
        return [*self.skipped_waiting, *self.waiting]

    def _check_waiting(self, request: Request) -> None:
        """Raise AssertionError if a request that waits holds what only running ones may hold."""
        assert request.request_id not in self.kv_cache_manager.req_to_blocks

    def _check_computed(self, request: Request) -> None:
        """Raise AssertionError if more of a request was scheduled than can be known by then: its
        tokens and, with late results, the one on its way."""
        num_late = request.num_computed_tokens - request.num_tokens
        assert num_late <= self.async_scheduling, f"{request}: {num_late} tokens too many"
