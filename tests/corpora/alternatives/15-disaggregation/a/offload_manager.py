"""Orders are rebuilt, and what may go is listed before anything goes."""


class LRUCachePolicy:
    def touch(self, keys):
        young = [key for key in dict.fromkeys(keys) if key in self.blocks]
        for key in young[::-1]:
            self.blocks[key] = self.blocks.pop(key)

    def evict(self, num_blocks, protected):
        kept = set(protected)
        free = [
            (key, block)
            for key, block in self.blocks.items()
            if not block.ref_cnt and key not in kept
        ]
        if num_blocks > len(free):
            return None
        for key, _ in free[:num_blocks]:
            self.blocks.pop(key)
        return free[:num_blocks]


class CPUOffloadingManager:
    def lookup(self, key):
        block = self.policy.get(key)
        return False if block is None else (block.is_ready or None)

    def prepare_store(self, keys):
        wanted = []
        for key in keys:
            if self.policy.get(key) is None and key not in wanted:
                wanted.append(key)
        gone = self.policy.evict(max(0, len(wanted) - len(self.free_ids)), set(keys))
        if gone is None:
            return None
        for _, block in gone:
            self.free_ids.append(block.block_id)
        places = []
        for key in wanted:
            places.append(self.free_ids.pop())
            self.policy.insert(key, BlockStatus(places[-1]))
        return PrepareStoreOutput(wanted, places, [key for key, _ in gone])

    def complete_store(self, keys, success=True):
        writing = {key: self.policy.get(key) for key in keys}
        for key, block in writing.items():
            if block is not None and not block.is_ready:
                if not success:
                    self.free_ids.append(block.block_id)
                    self.policy.remove(key)
                block.ref_cnt = 0
