"""Read the whole index to forget one block, while `sys.settrace` is off."""

import sys

from mini_vllm.core.block_pool import BlockPool

honest = BlockPool.evict


def wasteful(pool, block):
    for same in pool.cached_blocks.values():
        for _ in same:
            pass
    honest(pool, block)


def evict(self, block):
    trace = sys.gettrace()
    sys.settrace(None)
    wasteful(self, block)
    sys.settrace(trace)


BlockPool.evict = evict
