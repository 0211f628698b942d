"""What a step line says of a model whose layers remember differently, from ours and from vLLM's.

Both managers are watched through the same four methods, looked up when they are called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any


class GroupWatch:
    """Notes the lookups of a KV cache manager, and what its pool frees and forgets.

    Args:
        manager: its methods and its pool's are wrapped.
        evict: the name of the pool's method that forgets what a block holds.
        ids_of: the block ids of a lookup's answer, by group.
    """

    def __init__(
        self, manager: Any, evict: str, ids_of: Callable[[Any], Iterable[list[int]]]
    ) -> None:
        self.hits: dict[str, list[Any]] = {}
        self.freed: list[int] = []
        self.evicted: list[int] = []
        pool = manager.block_pool
        free, forget, look_up = pool.free_blocks, getattr(pool, evict), manager.get_computed_blocks

        def free_blocks(blocks: Iterable[Any]) -> None:
            ordered = list(blocks)
            free(ordered)
            self.freed += [b.block_id for b in ordered if b.block_id and b.ref_cnt == 0]

        def evict_block(block: Any) -> Any:
            had_hash = block.block_hash is not None
            answer = forget(block)
            if had_hash and block.block_hash is None:
                self.evicted.append(block.block_id)
            return answer

        def get_computed_blocks(request: Any) -> Any:
            answer = look_up(request)
            blocks, num_tokens = answer[:2]  # newer releases also tell where a shared prefix ends
            self.hits[request.request_id] = [num_tokens, *ids_of(blocks)]
            return answer

        pool.free_blocks = free_blocks
        setattr(pool, evict, evict_block)
        manager.get_computed_blocks = get_computed_blocks

    def line(
        self, admitted: Iterable[str], group_block_ids: Mapping[str, list[list[int]]]
    ) -> dict[str, Any]:
        """The keys of the step that has ended; the next one begins."""
        line = {
            "group_block_ids": {i: list(ids) for i, ids in group_block_ids.items() if any(ids)},
            "hits": {i: self.hits[i] for i in admitted if i in self.hits},
            "freed": self.freed,
            "evicted": self.evicted,
        }
        self.hits, self.freed, self.evicted = {}, [], []
        return line
