"""The free queue is a dict in order of insertion, with the links kept for whoever reads them."""


class FreeKVCacheBlockQueue:
    def __init__(self, blocks):
        self._waiting = {}
        self._head, self._tail = KVCacheBlock(-1), KVCacheBlock(-1)
        self._head.next_free, self._tail.prev_free = self._tail, self._head
        self.num_free_blocks = 0
        for block in blocks:
            self.append(block)

    def popleft(self):
        for block in self._waiting.values():
            self.remove(block)
            return block
        raise IndexError("there is no free block")

    def remove(self, block):
        if self._waiting.pop(block.block_id, None) is None:
            raise ValueError(f"block {block.block_id} is not free")
        left, right = block.prev_free, block.next_free
        left.next_free, right.prev_free = right, left
        block.prev_free = block.next_free = None
        self.num_free_blocks = len(self._waiting)

    def append(self, block):
        if block.block_id in self._waiting:
            raise ValueError(f"block {block.block_id} is free already")
        self._waiting[block.block_id] = block
        block.prev_free, block.next_free = self._tail.prev_free, self._tail
        block.prev_free.next_free = self._tail.prev_free = block
        self.num_free_blocks = len(self._waiting)

    def __iter__(self):
        return iter(tuple(self._waiting.values()))


class BlockPool:
    def get_new_blocks(self, num_blocks):
        from itertools import islice

        chosen = list(islice(self.free_block_queue, num_blocks))
        if len(chosen) < num_blocks:
            raise ValueError(f"only {len(chosen)} of {num_blocks} blocks are free")
        for block in chosen:
            self.free_block_queue.remove(block)
            self.evict(block)
            block.ref_cnt = 1
        return chosen

    def touch(self, blocks):
        for block in blocks:
            if not block.ref_cnt:
                self.free_block_queue.remove(block)
            block.ref_cnt = block.ref_cnt + 1

    def free_blocks(self, ordered_blocks):
        released = []
        for block in ordered_blocks:
            block.ref_cnt -= 1
            released += [block] * (block.ref_cnt == 0)
        for block in released:
            self.free_block_queue.append(block)

    def evict(self, block):
        same = self.cached_blocks.get(block.block_hash) if block.block_hash else None
        if same is None:
            return
        same.pop(block.block_id)
        if not same:
            self.cached_blocks.pop(block.block_hash)
        block.block_hash = None

    def cache_full_blocks(self, blocks, hashes):
        for block, block_hash in zip(blocks, hashes, strict=True):
            if block_hash not in self.cached_blocks:
                self.cached_blocks[block_hash] = {}
            self.cached_blocks[block_hash].update({block.block_id: block})
            block.block_hash = block_hash

    def get_cached_block(self, block_hash):
        try:
            return next(iter(self.cached_blocks[block_hash].values()))
        except (KeyError, StopIteration):
            return None
