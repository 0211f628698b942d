"""Two primitives, unlink and insert_before, carry the whole queue."""


def unlink(block):
    left, right = block.prev_free, block.next_free
    block.prev_free = block.next_free = None
    left.next_free, right.prev_free = right, left


def insert_before(right, block):
    left = right.prev_free
    left.next_free = block
    block.prev_free, block.next_free = left, right
    right.prev_free = block


class FreeKVCacheBlockQueue:
    def popleft(self):
        block = self._head.next_free
        if block is self._tail:
            raise IndexError("no block waits")
        unlink(block)
        self.num_free_blocks -= 1
        return block

    def remove(self, block):
        waits = block.next_free is not None and block.prev_free is not None
        if not waits:
            raise ValueError("this block does not wait")
        self.num_free_blocks -= 1
        unlink(block)

    def append(self, block):
        waits = block.next_free is not None or block.prev_free is not None
        if waits:
            raise ValueError("this block waits already")
        self.num_free_blocks += 1
        insert_before(self._tail, block)


class BlockPool:
    def get_new_blocks(self, num_blocks):
        if self.num_free_blocks < num_blocks:
            raise ValueError(f"{self.num_free_blocks} free blocks are fewer than {num_blocks}")
        if num_blocks == 0:
            return []
        first = self.free_block_queue.popleft()
        self.evict(first)
        first.ref_cnt = 1
        return [first, *self.get_new_blocks(num_blocks - 1)]

    def touch(self, blocks):
        from collections import Counter

        for block_id, times in Counter(block.block_id for block in blocks).items():
            block = self.blocks[block_id]
            if block.ref_cnt == 0:
                self.free_block_queue.remove(block)
            block.ref_cnt += times

    def free_blocks(self, ordered_blocks):
        for block in ordered_blocks:
            held_by_others = block.ref_cnt - 1
            block.ref_cnt = held_by_others
            if not held_by_others:
                self.free_block_queue.append(block)

    def evict(self, block):
        if block.block_hash is not None:
            others = {
                block_id: other
                for block_id, other in self.cached_blocks[block.block_hash].items()
                if other is not block
            }
            if others:
                self.cached_blocks[block.block_hash] = others
            else:
                del self.cached_blocks[block.block_hash]
        block.block_hash = None

    def cache_full_blocks(self, blocks, hashes):
        for block, block_hash in zip(blocks, hashes, strict=True):
            known = self.cached_blocks.get(block_hash)
            self.cached_blocks[block_hash] = {**(known or {}), block.block_id: block}
            block.block_hash = block_hash

    def get_cached_block(self, block_hash):
        blocks = list(self.cached_blocks.get(block_hash, {}).values())
        return blocks[0] if blocks else None
