"""Block tables of a model whose layers remember differently: one table a group, one pool for all.

::

    tokens             0 1 2 3 | 4 5 6 7 | 8 9
    full               [  5  ]   [  2  ]   [ 8 ]
    sliding window 4   [ null]   [  6  ]   [ 3 ]     no later token reads 0 to 3
    state              [ null]   [ null]   [ 9 ]     one state stands for all

A prefix hits only as far as *every* group has what the next token reads.

Source: vllm/v1/core/kv_cache_coordinator.py#L384-L607 (HybridKVCacheCoordinator) @ v0.22.1
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import gcd, lcm
from typing import Any, ClassVar

from mini_vllm.config.profiles import PROFILES, SchedulerRules
from mini_vllm.core.block_hash import BlockHasher
from mini_vllm.core.block_pool import KVCacheBlock
from mini_vllm.core.cache_groups import GroupSpec, longest_sequence
from mini_vllm.core.extension import SchedulerExtension
from mini_vllm.core.group_managers import MANAGERS, GroupManager, StateManager, Tables
from mini_vllm.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from mini_vllm.core.profile_rules import pool_for
from mini_vllm.core.scheduler_output import SchedulerOutput
from mini_vllm.request import Request


@dataclass(frozen=True)
class GroupedBlocks(KVCacheBlocks):
    """Blocks of all groups; ``blocks`` are those of group 0."""

    groups: tuple[list[KVCacheBlock], ...] = ()

    def get_group_block_ids(self) -> list[list[int]]:
        return [[block.block_id for block in blocks] for blocks in self.groups]


class HybridKVCacheManager(KVCacheManager):
    """A :class:`~mini_vllm.core.kv_cache_manager.KVCacheManager` for several groups of layers.

    One thing differs: ``None`` from :meth:`allocate_slots` no longer means that nothing has
    changed. Blocks that no later token reads are given back first, whatever the result.

    Args:
        groups: what each group of layers remembers.
        max_num_batched_tokens: of the scheduler; a step's tokens are held beside a window.
        rules: of the profile.

    Raises:
        ValueError: if block sizes of groups do not divide one another as hashes need it.
    """

    managers_of: ClassVar[Mapping[str, type[GroupManager]]] = MANAGERS
    """By what a group remembers."""

    def __init__(
        self,
        groups: Sequence[GroupSpec],
        num_gpu_blocks: int,
        max_model_len: int,
        max_num_batched_tokens: int,
        enable_caching: bool = True,
        hash_root: bytes | None = None,
        rules: SchedulerRules = PROFILES["v0.22"],
    ) -> None:
        first = groups[0].block_size
        super().__init__(num_gpu_blocks, first, max_model_len, enable_caching, hash_root)
        self.block_pool = pool_for(rules, self.block_pool)
        self.rules = rules
        self.groups = tuple(groups)
        self.alignment = lcm(*(group.block_size for group in groups))
        hash_block_size = _hash_block_size(groups, self.alignment, enable_caching)
        self.block_hasher = BlockHasher(hash_block_size, hash_root)
        self.managers: Sequence[GroupManager] = [
            self.managers_of[group.kind](
                group,
                index,
                self.block_pool,
                hash_block_size,
                max_num_batched_tokens,
                max_model_len,
            )
            for index, group in enumerate(groups)
        ]
        self.req_to_blocks = self.managers[0].req_to_blocks
        self.num_cached_blocks = self.managers[0].num_cached_blocks
        kinds: dict[GroupSpec, list[int]] = {}
        for index, group in enumerate(groups):
            kinds.setdefault(group, []).append(index)
        self.kinds = sorted(kinds.items(), key=lambda kind: kind[0].kind != "full")
        """Equal groups are looked up together; those of "full" first, whose answer is exact."""
        self.appended: dict[str, list[list[int]]] = {}
        """What requests got since the last plan, by group; see :class:`GroupSteps`."""

    @property
    def capacity_in_tokens(self) -> int:
        """The longest sequence that the pool can hold."""
        limits = self.managers[0].max_num_batched_tokens, self.max_model_len
        return longest_sequence(self.groups, self.block_pool.num_usable_blocks, *limits)

    def get_group_block_ids(self, request_id: str) -> list[list[int]]:
        """The block tables of a request, by group; the null block is 0."""
        return [
            [block.block_id for block in manager.req_to_blocks.get(request_id, ())]
            for manager in self.managers
        ]

    # ------------------------------------------------------------------ prefix hits

    def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int]:
        """See :class:`~mini_vllm.core.kv_cache_manager.KVCacheManager`; of all groups at once.

        Source: vllm/v1/core/kv_cache_coordinator.py#L503-L607
        (HybridKVCacheCoordinator.find_longest_cache_hit) @ v0.22.1
        """
        if not self.enable_caching or request.skip_reading_prefix_cache:
            tables: Tables = [[] for _ in self.managers]
            return GroupedBlocks(tables[0], tuple(tables)), 0
        tables, length = self._common_hit(request, request.num_tokens - 1)
        return GroupedBlocks(tables[0], tuple(tables)), length

    def _common_hit(self, request: Request, max_length: int) -> tuple[Tables, int]:
        """The longest prefix of at most ``max_length`` tokens from which *every* group can go on.

        The kinds are looked up in their order in ``self.kinds``. Each accepts the length or
        shortens it (``find_hit``). What was accepted before may not hold for the shorter length, so
        all are looked up again, until none shortens it.

        "full" is looked up once: whatever it has accepted, it accepts every whole number of its
        blocks below that. Beside "full" alone, a kind is looked up once: it came last.

        Returns:
            The hits of each group, by group id, and how many tokens they stand for. Each table
            covers just these tokens, those of "full" too.
        """
        # TODO 18.5
        raise NotImplementedError(
            "TODO 18.5: write HybridKVCacheManager._common_hit in labs/18-hybrid-caches/hybrid_kv_cache_manager.py"
            " (phase 18, 02-mini-build.md#task-5)"
        )

    def _is_full(self, kind: int) -> bool:
        return self.kinds[kind][0].kind == "full"

    # ------------------------------------------------------------------ slots

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        num_lookahead_tokens: int = 0,
        full_sequence_must_fit: bool = False,
        reserved_blocks: int = 0,
    ) -> KVCacheBlocks | None:
        """See :class:`~mini_vllm.core.kv_cache_manager.KVCacheManager`.

        In this order: does the whole sequence fit, counted by what it holds at once? Give back what
        no later token reads, also if the request then gets nothing. Count. Touch hits. Allocate
        group by group. Publish full blocks, up to a multiple of all block sizes.

        Source: vllm/v1/core/kv_cache_manager.py#L236-L427 (KVCacheManager.allocate_slots)
        @ v0.22.1
        """
        if num_new_tokens < 1:
            raise ValueError(f"num_new_tokens is {num_new_tokens}; it must be at least 1")
        request_id = request.request_id
        hits: Sequence[list[KVCacheBlock]] = [[] for _ in self.managers]
        if isinstance(new_computed_blocks, GroupedBlocks):
            hits = new_computed_blocks.groups
        computed = min(request.num_computed_tokens + num_new_computed_tokens, self.max_model_len)
        if full_sequence_must_fit:
            full_length = min(request.num_tokens, self.max_model_len)
            if not self._is_room(request_id, full_length, hits, computed, reserved_blocks, True):
                return None
        num_tokens = computed + num_new_tokens
        num_slots = min(num_tokens + num_lookahead_tokens, self.max_model_len)
        new = self._give_blocks(request_id, num_slots, hits, computed, reserved_blocks)
        if new is None:
            return None
        if any(new):
            self.appended[request_id] = [[block.block_id for block in blocks] for blocks in new]
        self.cache_tokens(request, min(num_tokens, request.num_tokens))
        return GroupedBlocks(new[0], new)

    def _give_blocks(
        self,
        request_id: str,
        num_slots: int,
        hits: Sequence[list[KVCacheBlock]],
        num_computed_tokens: int,
        reserved_blocks: int,
    ) -> tuple[list[KVCacheBlock], ...] | None:
        """Bring a request's tables to ``num_slots`` slots, or find that there is no room.

        In this order: every group gives back what no later token reads (``release_skipped``), also
        if the request then gets nothing. Is there room (``_is_room``)? If there are ``hits``, every
        group begins its table with its own (``add_hits``), before any group takes a new block:
        that block could be another group's hit. Each group adds blocks (``add_blocks``).

        Args:
            hits: what was found for each group; empty lists, if nothing.
            num_computed_tokens: before this step, those of the hits included.
            reserved_blocks: free blocks that must stay free.

        Returns:
            What each group appended; None if there is no room.
        """
        # TODO 18.6
        raise NotImplementedError(
            "TODO 18.6: write HybridKVCacheManager._give_blocks in labs/18-hybrid-caches/hybrid_kv_cache_manager.py"
            " (phase 18, 02-mini-build.md#task-6)"
        )

    def cache_tokens(self, request: Request, num_tokens: int) -> None:
        """Make the full blocks of the first ``num_tokens`` tokens findable in every group
        (``publish``), up to a multiple of all block sizes (``alignment``). Without a prefix cache
        nothing is.

        Source: vllm/v1/core/kv_cache_coordinator.py#L487-L501
        (HybridKVCacheCoordinator.cache_blocks) @ v0.22.1
        """
        # TODO 18.6
        raise NotImplementedError(
            "TODO 18.6: write HybridKVCacheManager.cache_tokens in labs/18-hybrid-caches/hybrid_kv_cache_manager.py"
            " (phase 18, 02-mini-build.md#task-6)"
        )

    def _is_room(
        self,
        request_id: str,
        num_tokens: int,
        hits: Sequence[list[KVCacheBlock]],
        num_computed_tokens: int,
        reserved_blocks: int,
        at_most_peak: bool = False,
    ) -> bool:
        wanted = sum(
            manager.num_wanted_blocks(
                request_id, num_tokens, blocks, num_computed_tokens, at_most_peak
            )
            for manager, blocks in zip(self.managers, hits, strict=True)
        )
        return wanted + reserved_blocks <= self.block_pool.num_free_blocks

    def uncache_blocks(self, request: Request, num_valid_tokens: int) -> None:
        for manager in self.managers:
            manager.unpublish(request.request_id, num_valid_tokens)

    def free(self, request: Request) -> None:
        """Take all blocks from ``request``: group after group, each from the end of its table."""
        for manager in self.managers:
            manager.free(request.request_id)
        self.appended.pop(request.request_id, None)

    def check_integrity(self, requests: Iterable[Request] = ()) -> None:
        """Raise AssertionError unless tables, reference counts and cache agree."""
        known = {request_id for manager in self.managers for request_id in manager.req_to_blocks}
        self._check_holders(
            {one: [i for ids in self.get_group_block_ids(one) for i in ids if i] for one in known}
        )
        for request in requests:
            for manager in self.managers:
                self._check_names(manager, request)

    def _check_names(self, manager: GroupManager, request: Request) -> None:
        table = manager.req_to_blocks.get(request.request_id, [])
        for index in range(manager.num_cached_blocks.get(request.request_id, 0)):
            known = (None, manager.key(request, index, manager.group_id))
            assert table[index].block_hash in known, (
                f"block {index} of {request.request_id} in group {manager.group_id} has the hash "
                "of other contents"
            )


def _hash_block_size(groups: Sequence[GroupSpec], alignment: int, enable_caching: bool) -> int:
    """Tokens that one hash covers: every group's block is a whole number of hashes.

    Source: vllm/v1/core/kv_cache_utils.py#L571-L634 (resolve_kv_cache_block_sizes) @ v0.22.1
    """
    odd = any(g.kind == "mamba" and g.block_size != groups[0].block_size for g in groups)
    if not enable_caching or odd:
        return alignment
    return gcd(*(group.block_size for group in groups))


class GroupSteps(SchedulerExtension):
    """What a plan needs besides group 0: the other tables, copies of states, and chunks that end
    where a state can be kept.

    Args:
        groups: see :class:`HybridKVCacheManager`, which :attr:`manager` is set to.
    """

    def __init__(self, groups: Sequence[GroupSpec]) -> None:
        self.groups = tuple(groups)
        self.block_size = groups[0].block_size
        self.keeps_states = any(g.kind == "mamba" and g.mode == "align" for g in groups)
        self.manager: HybridKVCacheManager | None = None

    def limit_tokens(self, request: Request, num_computed_tokens: int, num_new_tokens: int) -> int:
        """Let a step end where a state can be kept: at a block's end.

        The chunks of a prompt are cut back to whole blocks, if need be to 0 tokens. A chunk that
        goes beyond the last whole block of all tokens (``request.num_tokens``) ends with that
        block, and the rest follows in a step of its own. Nothing is cut without states that are
        kept, or when all that is known of the request has been computed: then it decodes. What is
        known is the prompt, and after a preemption all tokens but the newest.

        Source: vllm/v1/core/sched/scheduler.py#L279-L327 (Scheduler._mamba_block_aligned_split)
        @ v0.22.1
        """
        # TODO 18.8
        raise NotImplementedError(
            "TODO 18.8: write GroupSteps.limit_tokens in labs/18-hybrid-caches/hybrid_kv_cache_manager.py"
            " (phase 18, 02-mini-build.md#task-8)"
        )

    def batch_inputs(self, output: SchedulerOutput) -> dict[str, Any]:
        manager = self.manager
        assert manager is not None, "GroupSteps has no manager yet"
        whole = {new.req_id for new in output.scheduled_new_reqs}
        whole |= output.scheduled_cached_reqs.resumed_req_ids
        for request_id in output.num_scheduled_tokens:
            if request_id in whole:
                tables = manager.get_group_block_ids(request_id)
            else:
                tables = manager.appended.get(request_id, [])
            if any(tables[1:]):
                output.group_block_ids[request_id] = tables[1:]
        manager.appended.clear()
        for one in manager.managers:
            if isinstance(one, StateManager):
                one.step_planned()
                if one.is_aligned:
                    output.blocks_to_copy += self._copies(one, output)
        return {}

    def _copies(self, states: StateManager, output: SchedulerOutput) -> list[tuple[int, int]]:
        """(source, destination) of each state that goes on in another block.

        A state lies in the block of the last token that it stands for. A step that ends in another
        block than the step before copies it there first; a request without computed tokens has no
        state to copy. The order is that of the plan: ``output.num_scheduled_tokens`` has the tokens
        of each request in this step, ``output.num_computed_tokens(request_id)`` those before it.

        Source: vllm/v1/worker/mamba_utils.py#L640-L703 (preprocess_mamba) @ v0.22.1
        """
        # TODO 18.8
        raise NotImplementedError(
            "TODO 18.8: write GroupSteps._copies in labs/18-hybrid-caches/hybrid_kv_cache_manager.py"
            " (phase 18, 02-mini-build.md#task-8)"
        )
