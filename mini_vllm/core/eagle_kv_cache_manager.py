"""The block manager when drafts are made from hidden states.

    blocks in the cache   [ hit ][ hit ][ hit ] new tokens
    taken                 [ hit ][ hit ] computed again

A hidden state that was computed in an earlier request is not kept, and an EAGLE head's keys and
values at the last place of a block depend on the token *behind* the block, which its hash does not
cover. So the last block of a hit is computed again: the target's keys and values come out as they
were, the head's become right.
"""

from __future__ import annotations

from mini_vllm.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from mini_vllm.request import Request


class EagleKVCacheManager(KVCacheManager):
    """Gives every prefix hit without its last block, if ``use_eagle`` says so."""

    use_eagle = True

    def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int]:
        """See :class:`~mini_vllm.core.kv_cache_manager.KVCacheManager`.

        Source: vllm/v1/core/single_type_kv_cache_manager.py#L519-L522
        (FullAttentionManager.find_longest_cache_hit) @ v0.22.1
        """
        hits, num_tokens = super().get_computed_blocks(request)
        if not self.use_eagle or not hits.blocks:
            return hits, num_tokens
        return KVCacheBlocks(hits.blocks[:-1]), num_tokens - self.block_size
