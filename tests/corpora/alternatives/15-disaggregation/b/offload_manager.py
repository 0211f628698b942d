"""Generators and comprehensions."""


class LRUCachePolicy:
    def touch(self, keys):
        for index in range(len(keys) - 1, -1, -1):
            block = self.blocks.get(keys[index])
            if block is not None:
                self.blocks.move_to_end(keys[index], last=True)

    def evict(self, num_blocks, protected):
        from itertools import islice

        may_go = (
            (key, block)
            for key, block in self.blocks.items()
            if block.ref_cnt == 0 and not (key in protected)  # noqa: E713
        )
        victims = list(islice(may_go, num_blocks))
        if len(victims) != num_blocks:
            return None
        gone = {key for key, _ in victims}
        for key in gone:
            self.blocks.pop(key)
        return victims


class CPUOffloadingManager:
    def lookup(self, key):
        if (block := self.policy.get(key)) is not None:
            return None if block.ref_cnt < 0 else True
        return False

    def prepare_store(self, keys):
        fresh = {key: None for key in keys if self.policy.get(key) is None}
        lacking = len(fresh) - len(self.free_ids)
        evicted = self.policy.evict(lacking if lacking > 0 else 0, frozenset(keys))
        if evicted is None:
            return None
        self.free_ids.extend(block.block_id for _, block in evicted)
        for key in fresh:
            fresh[key] = self.free_ids.pop()
            self.policy.insert(key, BlockStatus(fresh[key]))
        return PrepareStoreOutput(list(fresh), list(fresh.values()), [key for key, _ in evicted])

    def complete_store(self, keys, success=True):
        for key in keys:
            block = self.policy.get(key)
            if block is not None and block.ref_cnt < 0:
                if success:
                    block.ref_cnt = 0
                    continue
                self.free_ids.append(block.block_id)
                self.policy.remove(key)
