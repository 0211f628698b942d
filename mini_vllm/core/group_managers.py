"""The block tables of one group of layers, by what its layers remember.

All groups take their blocks from one pool. A block whose tokens no later token reads goes back to
the pool, and the null block takes its place in the table, so that token ``i`` stays in place
``i // block_size``::

    sliding window of 5, blocks of 2, after 9 tokens
    table   [ null ][ null ][ b7 ][ b3 ][ b9 ]
    tokens    0  1    2  3    4 5   6 7   8 .      the next token, 9, reads 5 to 9

Source: vllm/v1/core/single_type_kv_cache_manager.py#L32-L1119 (SingleTypeKVCacheManager) @ v0.22.1
"""

from __future__ import annotations

from collections.abc import Sequence

from mini_vllm.core.block_pool import BlockPool, KVCacheBlock
from mini_vllm.core.cache_groups import GroupSpec
from mini_vllm.core.kv_cache_manager import cdiv
from mini_vllm.request import Request

Tables = list[list[KVCacheBlock]]
"""Blocks by group, for several groups that are looked up together."""


class GroupManager:
    """Layers that read every earlier token ("full").

    Args:
        spec: what the layers remember.
        group_id: which group this is; part of the name under which its blocks are found, for the
            same tokens have other contents in other groups.
        pool: shared with all other groups.
        hash_block_size: tokens that one of ``Request.block_hashes`` covers.
        max_num_batched_tokens, max_model_len: limits of the scheduler, see :meth:`peak_blocks`.
    """

    def __init__(
        self,
        spec: GroupSpec,
        group_id: int,
        pool: BlockPool,
        hash_block_size: int,
        max_num_batched_tokens: int,
        max_model_len: int,
    ) -> None:
        self.spec = spec
        self.block_size = spec.block_size
        self.group_id = group_id
        self.pool = pool
        self.null_block = pool.null_block
        self.hashes_per_block = spec.block_size // hash_block_size
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.req_to_blocks: dict[str, list[KVCacheBlock]] = {}
        self.num_cached_blocks: dict[str, int] = {}

    # ------------------------------------------------------------------ what a kind decides

    def num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """How many leading tokens no token after the first ``num_computed_tokens`` reads."""
        return 0

    def peak_blocks(self, num_tokens: int) -> int:
        """See :meth:`~mini_vllm.core.cache_groups.GroupSpec.peak_blocks`."""
        return self.spec.peak_blocks(num_tokens, self.max_num_batched_tokens, self.max_model_len)

    def find_hit(
        self, request: Request, max_length: int, group_ids: Sequence[int], alignment: int
    ) -> Tables:
        """The longest prefix of at most ``max_length`` tokens from which the layers can go on.

        Args:
            group_ids: groups of this very kind; a block counts if all of them have it.
            alignment: the prefix has a multiple of so many tokens.

        Returns:
            A table for each of the groups, with the null block for what is not read any more.
        """
        found: Tables = [[] for _ in group_ids]
        for index in range(max_length // self.block_size):
            blocks = self.look_up(request, index, group_ids)
            if blocks is None:
                break
            for table, block in zip(found, blocks, strict=True):
                table.append(block)
        return self._aligned(found, alignment)

    # ------------------------------------------------------------------ one step of a request

    def num_wanted_blocks(
        self,
        request_id: str,
        num_tokens: int,
        hits: Sequence[KVCacheBlock],
        num_computed_tokens: int,
        at_most_peak: bool = False,
    ) -> int:
        """Free blocks that it takes to give a request slots for ``num_tokens`` tokens in all.

        Args:
            hits: what :meth:`find_hit` found for it. A hit that no request holds is a free block
                itself, so taking it uses one up.
            num_computed_tokens: tokens before this step, those of the hits included.
            at_most_peak: count what the sequence holds at once, not all that it ever takes.

        Source: vllm/v1/core/single_type_kv_cache_manager.py#L89-L168
        (SingleTypeKVCacheManager.get_num_blocks_to_allocate) @ v0.22.1
        """
        num_required = cdiv(num_tokens, self.block_size)
        if at_most_peak:
            num_required = min(num_required, self.peak_blocks(num_tokens))
        num_held = len(self.req_to_blocks.get(request_id, ()))
        if request_id in self.num_cached_blocks:
            return max(num_required - num_held, 0)
        num_skipped = self.num_skipped_tokens(num_computed_tokens) // self.block_size
        num_new = max(num_required - max(num_skipped, len(hits) + num_held), 0)
        return num_new + self._num_free(hits[max(0, num_skipped - num_held) :])

    def release_skipped(self, request_id: str, num_computed_tokens: int) -> None:
        """Give back the blocks of which no later token reads a token, the newest first.

        The null block takes their places, so a table keeps its length. They keep their hashes, so a
        later request may find them. The blocks before a null block were given back earlier, so a
        call costs the blocks that it gives back, however long the table is.

        Source: vllm/v1/core/single_type_kv_cache_manager.py#L420-L461
        (SingleTypeKVCacheManager.remove_skipped_blocks) @ v0.22.1
        """
        table = self.req_to_blocks.get(request_id, [])
        num_skipped = self.num_skipped_tokens(num_computed_tokens) // self.block_size
        released = []
        for index in range(min(num_skipped, len(table)) - 1, -1, -1):
            if table[index] is self.null_block:
                break  # the blocks before it were given back earlier
            released.append(table[index])
            table[index] = self.null_block
        self.pool.free_blocks(released)

    def add_hits(
        self, request_id: str, hits: Sequence[KVCacheBlock], num_computed_tokens: int
    ) -> None:
        """Begin a request's table with its hits, which it then holds (``touch``).

        Hits of which no later token reads a token are not held: they become null, and so does what
        is skipped beyond the hits. The null block
        belongs to no request: it is never touched. A request that has begun
        (``num_cached_blocks``) gets no hits any more; after this it has, and all that it has is
        findable.

        Source: vllm/v1/core/single_type_kv_cache_manager.py#L170-L242
        (SingleTypeKVCacheManager.allocate_new_computed_blocks) @ v0.22.1
        """
        if request_id in self.num_cached_blocks:
            return
        num_skipped = self.num_skipped_tokens(num_computed_tokens) // self.block_size
        kept = hits[num_skipped:]
        self.pool.touch([block for block in kept if block is not self.null_block])
        table = self.req_to_blocks.setdefault(request_id, [])
        table += [self.null_block] * num_skipped
        table += kept
        self.num_cached_blocks[request_id] = len(table)

    def add_blocks(self, request_id: str, num_tokens: int) -> list[KVCacheBlock]:
        """Extend a table until it has slots for ``num_tokens`` tokens; returns what it appended."""
        table = self.req_to_blocks.setdefault(request_id, [])
        new = self.pool.get_new_blocks(max(cdiv(num_tokens, self.block_size) - len(table), 0))
        table += new
        return new

    def publish(self, request: Request, num_tokens: int, alignment: int) -> None:
        """Make the full blocks of the first ``num_tokens`` tokens findable, each of them once."""
        start = self.num_cached_blocks.get(request.request_id, 0)
        end = num_tokens // self.block_size
        if start >= end:
            return
        table = self.req_to_blocks[request.request_id]
        useful = [
            index
            for index in range(start, end)
            if table[index] is not self.null_block and self._can_be_hit(index, alignment)
        ]
        self.pool.cache_full_blocks(
            [table[index] for index in useful],
            [self.key(request, index, self.group_id) for index in useful],
        )
        self.num_cached_blocks[request.request_id] = end

    def unpublish(self, request_id: str, num_valid_tokens: int) -> None:
        """Take the blocks after the first ``num_valid_tokens`` tokens out of the cache again."""
        start = num_valid_tokens // self.block_size
        for block in self.req_to_blocks.get(request_id, ())[start:]:
            self.pool.evict(block)
        if request_id in self.num_cached_blocks:
            self.num_cached_blocks[request_id] = min(self.num_cached_blocks[request_id], start)

    def free(self, request_id: str) -> None:
        """Take all blocks from a request, from the end of its table."""
        table = self.req_to_blocks.pop(request_id, [])
        self.num_cached_blocks.pop(request_id, None)
        self.pool.free_blocks([block for block in reversed(table) if block is not self.null_block])

    # ------------------------------------------------------------------ helpers

    def key(self, request: Request, index: int, group_id: int) -> bytes:
        """The name of a request's block ``index`` in a group: the hashes of its tokens, then the
        group's id as 4 bytes, big end first.

        A hash covers ``block_size / hashes_per_block`` tokens; a block of several hashes joins
        them in order.

        Source: vllm/v1/core/kv_cache_utils.py#L55-L64 (make_block_hash_with_group_id) @ v0.22.1
        """
        size = self.hashes_per_block
        hashes = request.block_hashes[index * size : (index + 1) * size]
        return b"".join(hashes) + group_id.to_bytes(4, "big")

    def look_up(
        self, request: Request, index: int, group_ids: Sequence[int]
    ) -> list[KVCacheBlock] | None:
        """The block ``index`` of each group, or None if one of them does not have it."""
        found = []
        for group_id in group_ids:
            block = self.pool.get_cached_block(self.key(request, index, group_id))
            if block is None:
                return None
            found.append(block)
        return found

    def _aligned(self, tables: Tables, alignment: int) -> Tables:
        """Without what stands after the last multiple of ``alignment`` tokens."""
        num_tokens = len(tables[0]) * self.block_size // alignment * alignment
        for table in tables:
            del table[num_tokens // self.block_size :]
        return tables

    def _can_be_hit(self, index: int, alignment: int) -> bool:
        """Whether a hit that ends at a multiple of ``alignment`` can hold block ``index``."""
        return True

    def _num_free(self, blocks: Sequence[KVCacheBlock]) -> int:
        return sum(block.ref_cnt == 0 and block is not self.null_block for block in blocks)


class WindowManager(GroupManager):
    """Layers that read the last ``window`` tokens ("sliding_window")."""

    def num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """A token reads the last ``spec.window`` tokens, itself included.

        With a window of 4, token 7 reads 4 to 7: after 7 computed tokens 4 are skipped, 0 to 3.
        """
        return max(0, num_computed_tokens - self.spec.window + 1)

    def num_neighbours(self) -> int:
        """Blocks that hold what the next token reads, if the last of them ends right before it."""
        return cdiv(self.spec.window - 1, self.block_size)

    def find_hit(
        self, request: Request, max_length: int, group_ids: Sequence[int], alignment: int
    ) -> Tables:
        """From the right: the first run of ``num_neighbours()`` blocks, and of at least one, that
        are all found, the last of which ends at a multiple of ``alignment``. The blocks before it
        are null: the next token does not read them. No such run: what is found from block 0 on,
        without a gap, up to a multiple of ``alignment``. What lies before a run that is long enough
        is not looked up.

        Source: vllm/v1/core/single_type_kv_cache_manager.py#L542-L640
        (SlidingWindowManager.find_longest_cache_hit) @ v0.22.1
        """
        num_blocks = max_length // self.block_size
        found: Tables = [[self.null_block] * num_blocks for _ in group_ids]
        run = 0
        for index in range(num_blocks - 1, -1, -1):
            blocks = self.look_up(request, index, group_ids)
            if blocks is None:
                run = 0
                continue
            if run == 0 and (index + 1) * self.block_size % alignment:
                continue
            for table, block in zip(found, blocks, strict=True):
                table[index] = block
            run += 1
            if run >= self.num_neighbours():
                for table in found:
                    del table[index + run :]
                return found
        for table in found:
            del table[run:]
        return found

    def _can_be_hit(self, index: int, alignment: int) -> bool:
        """Only the last blocks before a multiple of ``alignment`` are ever looked for."""
        num_blocks = alignment // self.block_size
        return index % num_blocks >= num_blocks - self.num_neighbours()


class LocalManager(GroupManager):
    """Layers that read their token's chunk ("chunked_local")."""

    def num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """A token reads the tokens of its own chunk of ``spec.chunk`` that are before it.

        With chunks of 4, token 7 reads 4 to 7, and token 8 only itself: after 8 computed tokens 8
        are skipped.
        """
        return num_computed_tokens // self.spec.chunk * self.spec.chunk

    def find_hit(
        self, request: Request, max_length: int, group_ids: Sequence[int], alignment: int
    ) -> Tables:
        """Blocks before the chunk of token ``max_length`` count as found, and are null: no later
        token reads them. From there on to the right, up to the first block that is not found.
        Beside local chunks all blocks have one size, so ``alignment`` is one block.

        Source: vllm/v1/core/single_type_kv_cache_manager.py#L697-L787
        (ChunkedLocalAttentionManager.find_longest_cache_hit) @ v0.22.1
        """
        start = self.num_skipped_tokens(max_length) // self.block_size
        found: Tables = [[self.null_block] * start for _ in group_ids]
        for index in range(start, max_length // self.block_size):
            blocks = self.look_up(request, index, group_ids)
            if blocks is None:
                break
            for table, block in zip(found, blocks, strict=True):
                table.append(block)
        return found


class StateManager(GroupManager):
    """Layers that keep one state, which every token changes ("mamba").

    In mode "align" a table is null up to the block of the running state. A step that ends in a
    later block gets one new block; before the forward pass the state is copied into it from the old
    one, which goes back in the step after that.

    Source: vllm/v1/core/single_type_kv_cache_manager.py#L836-L1119 (MambaManager) @ v0.22.1
    """

    def __init__(self, spec: GroupSpec, group_id: int, pool: BlockPool, *limits: int) -> None:
        super().__init__(spec, group_id, pool, *limits)
        self.is_aligned = self.spec.mode == "align"
        self.last_state: dict[str, int] = {}
        """Place of the block from which the running state was copied."""
        self.published: set[bytes] = set()
        """What became findable in this step: its states are not computed yet, and a state is read
        before the step, not in it."""

    def step_planned(self) -> None:
        """The plan is made, so the states of this step are there before the next."""
        self.published.clear()

    def num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """No token is read once it is in the state; the state of the newest one is."""
        return max(0, num_computed_tokens - 1)

    def find_hit(
        self, request: Request, max_length: int, group_ids: Sequence[int], alignment: int
    ) -> Tables:
        """From the right: the first block that is found and ends at a multiple of ``alignment``.

        Its state stands for all tokens up to its end, so the blocks before it are null. Without
        such a block the tables are empty.

        Source: vllm/v1/core/single_type_kv_cache_manager.py#L857-L903
        (MambaManager.find_longest_cache_hit) @ v0.22.1
        """
        for index in range(max_length // self.block_size - 1, -1, -1):
            blocks = self.look_up(request, index, group_ids)
            if blocks is not None and (index + 1) * self.block_size % alignment == 0:
                return [[self.null_block] * index + [block] for block in blocks]
        return [[] for _ in group_ids]

    def num_wanted_blocks(
        self,
        request_id: str,
        num_tokens: int,
        hits: Sequence[KVCacheBlock],
        num_computed_tokens: int,
        at_most_peak: bool = False,
    ) -> int:
        """See the base class. But a state that became findable in this very step (``published``) is
        not computed yet: for a request that hits it the result is more than the pool has, so it
        waits. In mode "align" a request wants one new block if its table must grow, however far,
        and one for each hit that is free.
        """
        if hits and hits[-1].block_hash in self.published:
            return self.pool.num_gpu_blocks + 1  # never: it has to wait for the next step
        if not self.is_aligned:
            return super().num_wanted_blocks(request_id, num_tokens, hits, num_computed_tokens)
        num_held = len(self.req_to_blocks.get(request_id, ())) + len(hits)
        num_new = int(cdiv(num_tokens, self.block_size) > num_held)
        return num_new + self._num_free(hits)

    def release_skipped(self, request_id: str, num_computed_tokens: int) -> None:
        """See the base class. Then give back the block from which the running state was copied
        (``last_state``), if it is still held and the state of all computed tokens lies in a later
        one. Not sooner, because the copy is made at the beginning of the step after.
        """
        super().release_skipped(request_id, num_computed_tokens)
        last = self.last_state.get(request_id)
        if last is None or last >= cdiv(num_computed_tokens, self.block_size) - 1:
            return
        table = self.req_to_blocks[request_id]
        if table[last] is not self.null_block:
            self.pool.free_blocks([table[last]])
            table[last] = self.null_block

    def add_blocks(self, request_id: str, num_tokens: int) -> list[KVCacheBlock]:
        """In mode "align": extend a table to ``num_tokens`` tokens by null blocks, and one new
        block at its end, for there is one state. Note where it was before (``last_state``). A
        table that is long enough stays as it is. In the other modes see the base class.

        A call costs what it appends, however long the table is.

        Returns:
            What it appended, null blocks included.
        """
        if not self.is_aligned:
            return super().add_blocks(request_id, num_tokens)
        table = self.req_to_blocks.setdefault(request_id, [])
        num_before, num_required = len(table), cdiv(num_tokens, self.block_size)
        if num_required <= num_before:
            return []
        if num_before:
            self.last_state[request_id] = num_before - 1
        table += [self.null_block] * (num_required - 1 - num_before)
        table += self.pool.get_new_blocks(1)
        return table[num_before:]

    def publish(self, request: Request, num_tokens: int, alignment: int) -> None:
        start = self.num_cached_blocks.get(request.request_id, 0)
        super().publish(request, num_tokens, alignment)
        end = self.num_cached_blocks.get(request.request_id, 0)
        for block in self.req_to_blocks[request.request_id][start:end]:
            if block.block_hash is not None:
                self.published.add(block.block_hash)

    def free(self, request_id: str) -> None:
        self.last_state.pop(request_id, None)
        super().free(request_id)


MANAGERS: dict[str, type[GroupManager]] = {
    "full": GroupManager,
    "sliding_window": WindowManager,
    "chunked_local": LocalManager,
    "mamba": StateManager,
}
