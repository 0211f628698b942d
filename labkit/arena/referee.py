"""The referee: a worker without a model, which believes only what a plan tells the worker.

In place of keys and values, each KV slot holds a digest of the text up to it: *shadow KV*. A
request may compute its next token only if the slots of all its earlier tokens hold the digests of
its own text::

    block table of r0: [3, 1]       block_size 4

    block 3    d0  d1  d2  d3       d2 = digest(t0, t1, t2)
    block 1    d4  d5  --  --       computed so far: 6 tokens

A block that is given to two requests, a token that is said to be computed and never was, a block
that was not swapped back: each leaves a wrong digest where a request reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.scheduler_output import SchedulerOutput

EMPTY = 0
"""What a slot holds that was never written."""


class RuleBroken(Exception):
    """A scheduler did what no scheduler may do; the message says what, for whom, and the limit."""


@dataclass(slots=True)
class Told:
    """What the worker was told of one request, and what follows from it."""

    tokens: list[int]
    """Its whole text so far, as it really is."""
    table: list[int] = field(default_factory=list)
    computed: int = 0
    digests: list[int] = field(default_factory=list)

    def digests_up_to(self, end: int) -> list[int]:
        """Digests of the first ``end`` prefixes. Tuples of ints hash the same in every process."""
        last = self.digests[-1] if self.digests else 1
        for token in self.tokens[len(self.digests) : end]:
            last = hash((last, token))
            self.digests.append(last)
        return self.digests


class Referee:
    """Watches one scheduler, plan by plan.

    Args:
        limits, cache: what the scheduler was told to keep to.
        every: check everything that is read, and the scheduler's own books, in every so-manieth
            step. Budgets and tables are checked in each.
    """

    def __init__(self, limits: SchedulerConfig, cache: CacheConfig, every: int = 1) -> None:
        assert cache.num_gpu_blocks is not None
        self.limits = limits
        self.block_size = cache.block_size
        self.num_usable_blocks = cache.num_gpu_blocks - 1
        self.every = every
        self.steps = 0
        self.requests: dict[str, Told] = {}
        self.device = [[EMPTY] * cache.block_size for _ in range(cache.num_gpu_blocks)]
        self.host = [[EMPTY] * cache.block_size for _ in range(cache.num_cpu_blocks)]

    def add(self, request_id: str, prompt: Sequence[int]) -> None:
        """A request has arrived."""
        self.requests[request_id] = Told(list(prompt))

    def append(self, request_id: str, token: int) -> None:
        """The request has got another token."""
        self.requests[request_id].tokens.append(token)

    def watch(self, plan: SchedulerOutput, scheduler: Scheduler) -> None:
        """Carry out a plan that ``scheduler`` has just made.

        Raises:
            RuleBroken: it cannot be carried out, or a request would read what is not its own.
        """
        thorough = self.steps % self.every == 0
        self.steps += 1
        self._check_limits(plan)
        self._learn(plan)
        self._move(plan)
        for request_id, count in plan.num_scheduled_tokens.items():
            self._write(request_id, count)
        arrived = {new.req_id for new in plan.scheduled_new_reqs}
        arrived |= plan.scheduled_cached_reqs.resumed_req_ids
        for request_id in plan.num_scheduled_tokens if thorough else arrived:
            self._read(request_id)
        if thorough:
            self._check_books(scheduler)

    def _check_limits(self, plan: SchedulerOutput) -> None:
        tokens = plan.num_scheduled_tokens
        total, budget = sum(tokens.values()), self.limits.max_num_batched_tokens
        if total > budget:
            raise RuleBroken(f"a step of {total} tokens; max_num_batched_tokens is {budget}")
        if len(tokens) > self.limits.max_num_seqs:
            raise RuleBroken(
                f"a step with {len(tokens)} requests; max_num_seqs is {self.limits.max_num_seqs}"
            )
        for request_id, count in tokens.items():
            if request_id not in self.requests:
                raise RuleBroken(f"{request_id} is scheduled, but it is unknown or has finished")
            if count < 1:
                raise RuleBroken(f"{request_id} is scheduled with {count} tokens; 1 is the least")

    def _learn(self, plan: SchedulerOutput) -> None:
        """Bring the block tables up to date."""
        for request_id in plan.finished_req_ids:
            self.requests.pop(request_id, None)
        for request_id in plan.preempted_req_ids:
            self.requests[request_id].table = []
        for new in plan.scheduled_new_reqs:
            told = self.requests[new.req_id]
            told.table, told.computed = list(new.block_ids), new.num_computed_tokens
        cached = plan.scheduled_cached_reqs
        for request_id, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            told = self.requests[request_id]
            blocks = plan.new_block_ids.get(request_id, [])
            if request_id in cached.resumed_req_ids:
                told.table, told.computed = list(blocks), computed
            elif computed != told.computed:
                raise RuleBroken(
                    f"{request_id} has computed {told.computed} tokens; the plan says {computed}"
                )
            else:
                told.table += blocks

    def _move(self, plan: SchedulerOutput) -> None:
        """Swap and copy blocks, all before the first write, as the worker does."""
        for source, target in plan.blocks_to_swap_out:
            self.host[target] = list(self.device[source])
        for source, target in plan.blocks_to_swap_in:
            self.device[target] = list(self.host[source])
        for source, target in plan.blocks_to_copy:
            self.device[target] = list(self.device[source])

    def _write(self, request_id: str, count: int) -> None:
        """Fill the slots of the tokens that are computed in this step."""
        told, size = self.requests[request_id], self.block_size
        start, end = told.computed, told.computed + count
        if end > len(told.tokens):
            raise RuleBroken(f"{request_id} computes token {end} of {len(told.tokens)}")
        if end > len(told.table) * size:
            raise RuleBroken(
                f"{request_id} computes {end} tokens in {len(told.table)} blocks of {size}"
            )
        digests = told.digests_up_to(end)
        for index in range(start // size, -(-end // size)):
            block_id = told.table[index]
            if not 0 < block_id <= self.num_usable_blocks:
                raise RuleBroken(f"{request_id} was given block {block_id}")
            low, high = max(start, index * size), min(end, (index + 1) * size)
            self.device[block_id][low - index * size : high - index * size] = digests[low:high]
        told.computed = end

    def _read(self, request_id: str) -> None:
        """Look at every slot that attention reads for this request."""
        told, size = self.requests[request_id], self.block_size
        for start in range(0, told.computed, size):
            expected = told.digests[start : min(start + size, told.computed)]
            block_id = told.table[start // size]
            if self.device[block_id][: len(expected)] != expected:
                raise RuleBroken(
                    f"{request_id} reads block {block_id} for its tokens from {start} on, and "
                    "another text stands there"
                )

    def _check_books(self, scheduler: Scheduler) -> None:
        """Blocks that the worker knows of and free blocks make up the pool; and the scheduler's
        own books agree with each other."""
        held = len({block_id for told in self.requests.values() for block_id in told.table})
        free = scheduler.kv_cache_manager.num_free_blocks
        if held + free != self.num_usable_blocks:
            raise RuleBroken(
                f"{held} blocks are held and {free} are free; the pool has {self.num_usable_blocks}"
            )
        try:
            scheduler.check_integrity()
        except AssertionError as error:
            raise RuleBroken(f"check_integrity: {error}") from error
