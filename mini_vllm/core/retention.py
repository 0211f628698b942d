"""Windows and states that are kept only where a later request can begin.

::

    a window of 4 in blocks of 2, a prompt of 11 tokens, an answer of 5
    block        0    1    2    3    4    5    6    7
    every        h    h    h    h    h    h    h    h      as vLLM 0.22.1: each can be found
    interval 0   .    .    .    h    h    .    .    .      the same prompt again begins at token 10
    interval 8   .    .    h    h    h    .    h    h      and at 8, at 16, ...

A hit needs the blocks in front of the place where it ends, and a request can end its hit only where
its own tokens end to be those of another. Kept everywhere, windows and states fill the pool with
blocks that are never asked for. Three places are kept: the end of the prompt, the end of a prefix
that a lookup has found in "full" layers only (a *junction*: the next request with that prefix
will ask for it), and every ``retention_interval`` tokens.

vLLM 0.32.0 does so in ``SlidingWindowManager.reachable_block_mask`` and in
``MambaManager.reachable_block_mask``; the rules are in :mod:`mini_vllm.config.profiles`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from mini_vllm.config.profiles import SchedulerRules
from mini_vllm.core.cache_groups import GroupSpec
from mini_vllm.core.group_managers import (
    GroupManager,
    LocalManager,
    StateManager,
    Tables,
    WindowManager,
)
from mini_vllm.core.hybrid_kv_cache_manager import GroupSteps, HybridKVCacheManager
from mini_vllm.core.kv_cache_manager import KVCacheBlocks
from mini_vllm.core.scheduler_output import ModelRunnerOutput, SchedulerOutput
from mini_vllm.request import Request


class RetainingManager(GroupManager):
    """What all kinds have in common: how far a lookup has come, and which places are kept."""

    longest_hit = 0
    """Tokens of the longest prefix that was found since this was set to 0."""
    retention_interval: int | None = None
    """None: every block is kept."""
    boundaries: Sequence[int] = ()
    """Tokens after which a later request can begin, of the request that is being published."""
    rules: SchedulerRules
    in_flight: Counter[str]
    """Tokens by request that are being computed; shared by all groups."""

    def find_hit(
        self, request: Request, max_length: int, group_ids: Sequence[int], alignment: int
    ) -> Tables:
        tables = super().find_hit(request, max_length, group_ids, alignment)
        self.longest_hit = max(self.longest_hit, len(tables[0]) * self.block_size)
        return tables

    def release_skipped(self, request_id: str, num_computed_tokens: int) -> None:
        """See the base class; only what no token reads of those that are being computed."""
        super().release_skipped(request_id, self._num_done(request_id, num_computed_tokens))

    def _num_done(self, request_id: str, num_computed_tokens: int) -> int:
        return max(0, num_computed_tokens - self.in_flight[request_id])

    def _is_kept(self, index: int, num_blocks: int, alignment: int) -> bool:
        """Whether block ``index`` is one of ``num_blocks`` in front of a place that is kept."""
        interval = self.retention_interval
        if (
            interval
            and index % (interval // self.block_size) >= interval // self.block_size - num_blocks
        ):
            return True
        ends = [tokens // alignment * alignment // self.block_size for tokens in self.boundaries]
        return any(end - num_blocks <= index < end for end in ends)


class RetainingLocalManager(RetainingManager, LocalManager):
    """Chunks are kept at every block."""


class RetainingWindowManager(RetainingManager, WindowManager):
    """Windows are kept in front of places where a request can begin."""

    def _can_be_hit(self, index: int, alignment: int) -> bool:
        if self.retention_interval is None:
            return super()._can_be_hit(index, alignment)
        return self._is_kept(index, self.num_neighbours(), alignment)


class RetainingStateManager(RetainingManager, StateManager):
    """States are kept at places where a request can begin."""

    def _can_be_hit(self, index: int, alignment: int) -> bool:
        return self.retention_interval is None or self._is_kept(index, 1, alignment)

    def publish(self, request: Request, num_tokens: int, alignment: int) -> None:
        """See the base class. With ``rules.prompt_state_rests`` the state at the end of a prompt
        counts as published in this step, so no request hits it yet."""
        super().publish(request, num_tokens, alignment)
        at_end = num_tokens == (request.num_prompt_tokens - 1) // self.block_size * self.block_size
        if self.is_aligned and at_end and num_tokens and self.rules.prompt_state_rests:
            block = self.req_to_blocks[request.request_id][num_tokens // self.block_size - 1]
            if block.block_hash is not None:
                self.published.add(block.block_hash)

    def release_skipped(self, request_id: str, num_computed_tokens: int) -> None:
        """See the base class. With late results, states that wait to be given back may stand in
        front of null blocks; they go, too."""
        if self.is_aligned:
            table = self.req_to_blocks.get(request_id, [])
            num_done = self._num_done(request_id, num_computed_tokens)
            num_skipped = min(self.num_skipped_tokens(num_done) // self.block_size, len(table))
            skipped = [i for i in range(num_skipped) if table[i] is not self.null_block]
            self.pool.free_blocks([table[index] for index in reversed(skipped)])
            for index in skipped:
                table[index] = self.null_block
        super().release_skipped(request_id, num_computed_tokens)


class RetainingKVCacheManager(HybridKVCacheManager):
    """Keeps windows and states where a later request can begin.

    Raises:
        ValueError: if ``retention_interval`` is no multiple of all block sizes.
    """

    managers_of: ClassVar[Mapping[str, type[GroupManager]]] = {
        "full": RetainingManager,
        "sliding_window": RetainingWindowManager,
        "chunked_local": RetainingLocalManager,
        "mamba": RetainingStateManager,
    }
    managers: Sequence[RetainingManager]
    is_planning = False

    def __init__(self, *arguments: Any, retention_interval: int | None, **more: Any) -> None:
        super().__init__(*arguments, **more)
        if retention_interval and retention_interval % self.alignment:
            raise ValueError(
                f"prefix_cache_retention_interval is {retention_interval}; it must be a multiple "
                f"of {self.alignment}, at which all groups of layers end a block"
            )
        self.in_flight: Counter[str] = Counter()
        """See :class:`RetainingSteps`."""
        for manager in self.managers:
            manager.retention_interval = retention_interval
            manager.in_flight, manager.rules = self.in_flight, self.rules
        self.junctions: dict[str, int] = {}
        """Tokens of a prefix that a lookup has found whole in some groups only, by request."""

    def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int]:
        """See the base class; also notes the end of a prefix that only some groups have kept."""
        for manager in self.managers:
            manager.longest_hit = 0
        hits, num_tokens = super().get_computed_blocks(request)
        longest = max(manager.longest_hit for manager in self.managers)
        self.junctions[request.request_id] = longest if longest > num_tokens else 0
        return hits, num_tokens

    def allocate_slots(self, *arguments: Any, **more: Any) -> KVCacheBlocks | None:
        self.is_planning = True
        try:
            return super().allocate_slots(*arguments, **more)
        finally:
            self.is_planning = False

    def cache_tokens(self, request: Request, num_tokens: int) -> None:
        """See the base class. With late results it is called between two plans, too; the states
        that become findable there are computed before the next plan is carried out."""
        junction = self.junctions.get(request.request_id, 0)
        boundaries = [request.num_prompt_tokens - 1, *([junction] if junction else [])]
        for manager in self.managers:
            manager.boundaries = boundaries
        super().cache_tokens(request, num_tokens)
        for manager in self.managers:
            if isinstance(manager, StateManager) and not self.is_planning:
                manager.step_planned()

    def free(self, request: Request) -> None:
        super().free(request)
        self.junctions.pop(request.request_id, None)


class RetainingSteps(GroupSteps):
    """Chunks that end where a state is kept, and the tokens that are being computed.

    Args:
        max_chunk: most tokens of a prompt in one step.
    """

    manager: RetainingKVCacheManager | None

    def __init__(self, groups: Sequence[GroupSpec], max_chunk: int) -> None:
        super().__init__(groups)
        self.max_chunk = max_chunk

    def limit_tokens(self, request: Request, num_computed_tokens: int, num_new_tokens: int) -> int:
        """See the base class. The last state ends *before* the last token, for a request with the
        same tokens computes that one again; one more ends at the junction."""
        known = max(request.num_prompt_tokens, request.num_tokens - 1)
        if not self.keeps_states or num_computed_tokens >= known:
            return num_new_tokens
        assert self.manager is not None
        size, start = self.block_size, num_computed_tokens
        end = start + num_new_tokens
        if end < known and (end // size * size > start or size <= self.max_chunk):
            end = end // size * size
        junction = self.manager.junctions.get(request.request_id, 0)
        in_front = self.manager.rules.states_end_before_last_token
        stops = [
            (request.num_tokens - in_front) // size * size,
            start + (junction - start) // size * size if start < junction < end else 0,
            (start // size + 1) * size if start % size else 0,
        ]
        return max(min([stop for stop in stops if start < stop < end], default=end) - start, 0)

    def batch_inputs(self, output: SchedulerOutput) -> dict[str, Any]:
        assert self.manager is not None
        if self.manager.rules.windows_outlast_late_tokens:
            self.manager.in_flight.update(output.num_scheduled_tokens)
        return super().batch_inputs(output)

    def step_done(self, output: SchedulerOutput, result: ModelRunnerOutput) -> set[str]:
        assert self.manager is not None
        if self.manager.rules.windows_outlast_late_tokens:
            self.manager.in_flight.subtract(output.num_scheduled_tokens)
        return super().step_done(output, result)
