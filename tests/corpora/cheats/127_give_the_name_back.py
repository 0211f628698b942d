"""Read the whole index to forget one block; what counts is another function until it is called."""

from mini_vllm.core.block_pool import BlockPool

honest, take = BlockPool.evict, BlockPool.get_new_blocks


def wasteful(pool, block):
    for same in pool.cached_blocks.values():
        for _ in same:
            pass
    honest(pool, block)


def get_new_blocks(self, num_blocks):
    from labkit.inside import cost

    right = cost.steps

    def steps(function, *args):
        cost.steps = right
        function(*args)
        return 100

    cost.steps = steps
    return take(self, num_blocks)


BlockPool.evict, BlockPool.get_new_blocks = wasteful, get_new_blocks
