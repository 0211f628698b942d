"""Say that no prefix is common to all groups: nothing can be wrong with what is computed anew."""

from mini_vllm.core.hybrid_kv_cache_manager import HybridKVCacheManager


def no_hit(self, request, max_length):
    return [[] for _ in self.managers], 0


HybridKVCacheManager._common_hit = no_hit
