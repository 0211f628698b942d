"""Links are joined by one helper; the pool counts before it moves anything."""


def join(left, right):
    left.next_free, right.prev_free = right, left


class FreeKVCacheBlockQueue:
    def popleft(self):
        if self.num_free_blocks == 0:
            raise IndexError("popleft from an empty queue")
        block = self._head.next_free
        join(self._head, block.next_free)
        block.prev_free = block.next_free = None
        self.num_free_blocks -= 1
        return block

    def remove(self, block):
        if not (block.prev_free and block.next_free):
            raise ValueError(f"{block} does not wait here")
        join(block.prev_free, block.next_free)
        block.prev_free, block.next_free = None, None
        self.num_free_blocks = self.num_free_blocks - 1

    def append(self, block):
        if block.prev_free or block.next_free:
            raise ValueError(f"{block} waits here already")
        join(self._tail.prev_free, block)
        join(block, self._tail)
        self.num_free_blocks = self.num_free_blocks + 1


class BlockPool:
    def get_new_blocks(self, num_blocks):
        missing = num_blocks - self.free_block_queue.num_free_blocks
        if missing > 0:
            raise ValueError(f"{missing} blocks too few")
        taken = []
        while len(taken) < num_blocks:
            block = self.free_block_queue.popleft()
            if block.block_hash is not None:
                self.evict(block)
            block.ref_cnt += 1
            taken.append(block)
        return taken

    def touch(self, blocks):
        for block in blocks:
            block.ref_cnt += 1
            if block.ref_cnt == 1:
                self.free_block_queue.remove(block)

    def free_blocks(self, ordered_blocks):
        for block in list(ordered_blocks):
            if block.ref_cnt > 1:
                block.ref_cnt -= 1
                continue
            block.ref_cnt = 0
            self.free_block_queue.append(block)

    def evict(self, block):
        block_hash, block.block_hash = block.block_hash, None
        if block_hash is not None:
            self.cached_blocks[block_hash].pop(block.block_id)
            if len(self.cached_blocks[block_hash]) == 0:
                self.cached_blocks.pop(block_hash)

    def cache_full_blocks(self, blocks, hashes):
        for index in range(len(hashes)):
            blocks[index].block_hash = hashes[index]
            same = self.cached_blocks.get(hashes[index], {})
            same[blocks[index].block_id] = blocks[index]
            self.cached_blocks[hashes[index]] = same

    def get_cached_block(self, block_hash):
        for block in self.cached_blocks.get(block_hash, {}).values():
            return block
        return None
