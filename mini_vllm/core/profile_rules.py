"""The parts of the scheduler that depend on a profile's rules.

The scheduler, its queues and its block pool are those of the pin; see
:mod:`mini_vllm.config.profiles` for the rules themselves.
"""

from __future__ import annotations

from collections.abc import Iterable

from mini_vllm.config import SchedulerConfig
from mini_vllm.config.profiles import SchedulerRules
from mini_vllm.core.block_pool import BlockPool, KVCacheBlock
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.core.request_queue import RequestQueue
from mini_vllm.request import Request


class UnhashedFirstBlockPool(BlockPool):
    """A pool that gives out first what no hash can find::

        allocate ◄── head │ freed without a hash │ 4 │ 9 │ freed with a hash │ tail

    vLLM 0.32.0 does so in ``BlockPool.free_blocks``.
    """

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """See the base class; free blocks without a hash then go to the front, in their order."""
        blocks = list(ordered_blocks)
        super().free_blocks(blocks)
        unhashed = [block for block in blocks if block.ref_cnt == 0 and block.block_hash is None]
        for block in unhashed:
            self.free_block_queue.remove(block)
        self.free_block_queue.prepend_all(unhashed)


def pool_for(rules: SchedulerRules, pool: BlockPool) -> BlockPool:
    """A pool of the kind that the rules ask for, in the place of an untouched one."""
    if not rules.unhashed_blocks_first:
        return pool
    return UnhashedFirstBlockPool(pool.num_gpu_blocks, pool.enable_caching)


class ProfileRules:
    """The part of the scheduler that looks at the rules, and at options newer than the pin."""

    scheduler_config: SchedulerConfig
    rules = SchedulerRules()
    """Where the profile differs from the pin. Kept here because a step reads it for each
    request."""
    long_prefill_cap: int
    """Most tokens that one request gets in this step; 0: as many as the budget has. Set once a
    step."""
    num_speculative_tokens = 0
    """Drafts that a request may have in a step."""
    kv_cache_manager: KVCacheManager
    requests: dict[str, Request]
    running: list[Request]
    waiting: RequestQueue
    skipped_waiting: RequestQueue

    def _cap_of_step(self) -> int:
        """``long_prefill_cap`` with as many requests as there are now."""
        config = self.scheduler_config
        cap = config.long_prefill_token_threshold
        if cap == 0:
            return 0
        num_requests = len(self.requests)
        if num_requests == 1 and self.rules.lone_prefill_uncapped:
            return 0
        if config.long_prefill_token_threshold_adaptive:
            return max(cap, config.max_num_batched_tokens // max(num_requests, 1))
        return cap

    def _at_admission(self) -> dict[str, int]:
        """What an admission asks of ``allocate_slots`` beyond its own tokens, as arguments: blocks
        that stay free (``watermark``), and slots for the next step's drafts.

        Empty under the pin: then a manager that has no such arguments serves as well.
        """
        asked = {}
        config = self.scheduler_config
        if config.watermark > 0.0 and self.running:
            num_blocks = self.kv_cache_manager.block_pool.num_gpu_blocks
            asked["reserved_blocks"] = int(config.watermark * num_blocks)
        if self.rules.lookahead_at_admission and config.num_lookahead_tokens:
            asked["num_lookahead_tokens"] = config.num_lookahead_tokens
        return asked

    def _moves_position(self, victim: Request, index: int, was_in_plan: bool) -> bool:
        """Whether position ``index`` of ``running`` moves down when a victim leaves the list."""
        if self.rules.victim_moves_position:
            return self.running.index(victim) < index
        return was_in_plan

    def _return_skipped(self) -> None:
        """After the waiting pass: requests that hold no blocks go back to ``waiting``, in front."""
        if self.rules.skipped_keep_their_queue and self.skipped_waiting:
            skipped = [r for r in self.skipped_waiting if not self._stays_apart(r)]
            self.skipped_waiting.remove_requests(skipped)
            self.waiting.prepend_requests(reversed(skipped))

    def _stays_apart(self, request: Request) -> bool:
        return request.request_id in self.kv_cache_manager.req_to_blocks
