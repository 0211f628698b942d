"""Read the whole index to forget one block, in a thread whose steps nothing counts."""

from threading import Thread

from mini_vllm.core.block_pool import BlockPool

honest = BlockPool.evict


def wasteful(pool, block):
    for same in pool.cached_blocks.values():
        for _ in same:
            pass
    honest(pool, block)


def evict(self, block):
    worker = Thread(target=wasteful, args=(self, block))
    worker.start()
    worker.join()


BlockPool.evict = evict
