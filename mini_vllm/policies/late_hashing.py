"""A KV cache manager in which no lookup finds a block before it is computed."""

from __future__ import annotations

from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.request import Request


class LateHashing(KVCacheManager):
    """Blocks become findable when :meth:`publish` is called, not already when they are allocated.

    So no lookup finds a block of the same step: equal prompts that start together fill equal blocks
    side by side.
    """

    def cache_blocks(self, request: Request, num_full_blocks: int) -> None:
        """Nothing yet: ``allocate_slots`` asks for it before the forward pass."""

    def publish(self, request: Request) -> None:
        """Make the full blocks of the request's computed tokens findable.

        A block that another request has published, as a fork's source may have, is left as it is.
        """
        if not self.enable_caching:
            return
        num_full = min(request.num_computed_tokens, request.num_tokens) // self.block_size
        num_cached = self.num_cached_blocks[request.request_id]
        table = self.req_to_blocks[request.request_id]
        for index in range(num_cached, num_full):
            if table[index].block_hash is None:
                self.block_pool.cache_full_blocks([table[index]], [request.block_hashes[index]])
        self.num_cached_blocks[request.request_id] = max(num_cached, num_full)
