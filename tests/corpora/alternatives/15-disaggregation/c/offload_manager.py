"""A list of what may go; places of the evicted first."""


class LRUCachePolicy:
    def touch(self, keys):
        for key in keys[::-1]:
            if key in self.blocks:
                self.blocks.move_to_end(key)

    def evict(self, num_blocks, protected):
        may_go = [
            (key, block)
            for key, block in self.blocks.items()
            if block.ref_cnt == 0 and key not in protected
        ]
        if len(may_go) < num_blocks:
            return None
        victims = may_go[:num_blocks]
        for key, _ in victims:
            del self.blocks[key]
        return victims


class CPUOffloadingManager:
    def lookup(self, key):
        block = self.policy.get(key)
        if block is None:
            return False
        return True if block.is_ready else None

    def prepare_store(self, keys):
        new_keys = [key for key in dict.fromkeys(keys) if self.policy.get(key) is None]
        num_missing = max(len(new_keys) - len(self.free_ids), 0)
        evicted = self.policy.evict(num_missing, set(keys))
        if evicted is None:
            return None
        ids = [block.block_id for _, block in evicted]
        while len(ids) < len(new_keys):
            ids.append(self.free_ids.pop())
        for key, block_id in zip(new_keys, ids, strict=True):
            self.policy.insert(key, BlockStatus(block_id))
        return PrepareStoreOutput(new_keys, ids, [key for key, _ in evicted])

    def complete_store(self, keys, success=True):
        for key in keys:
            block = self.policy.get(key)
            if block is None or block.is_ready:
                continue
            if success:
                block.ref_cnt = 0
            else:
                self.policy.remove(key)
                self.free_ids.append(block.block_id)
