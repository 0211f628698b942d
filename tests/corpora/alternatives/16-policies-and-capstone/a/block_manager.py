"""Everything that a call needs is counted first and taken from the pool in one piece."""


class BlockManager:
    def fork(self, parent, child, num_tokens):
        mine = []
        for index, block in enumerate(self.req_to_blocks[parent.request_id]):
            if index * self.block_size >= num_tokens:
                break
            self.block_pool.touch([block])
            mine.append(block)
        cached = self.num_cached_blocks[parent.request_id]
        while cached * self.block_size > num_tokens:
            cached -= 1
        self.req_to_blocks[child.request_id] = mine
        self.num_cached_blocks[child.request_id] = cached
        child.num_computed_tokens = num_tokens

    def append(self, request, num_slots):
        table = self.req_to_blocks[request.request_id]
        copied = 1 if self._must_copy(request) else 0
        added = max(self._num_blocks(num_slots) - len(table), 0)
        fresh = self.block_pool.get_new_blocks(copied + added)
        copies = []
        for block in fresh[:copied]:
            index = request.num_computed_tokens // self.block_size
            copies.append((table[index].block_id, block.block_id))
            self.block_pool.free_blocks([table[index]])
            table[index] = block
        table += fresh[copied:]
        return KVCacheBlocks(fresh[copied:]), copies

    def swap_out(self, requests):
        tables = {r.request_id: [b.block_id for b in self._computed(r)] for r in requests}
        moving = sorted({block_id for table in tables.values() for block_id in table})
        taken = self.free_host_blocks[: len(moving)]
        self.free_host_blocks = self.free_host_blocks[len(moving) :]
        place = dict(zip(moving, taken, strict=True))
        for request in requests:
            super().free(request)
            self.host_tables[request.request_id] = [place[i] for i in tables[request.request_id]]
        return sorted(place.items(), key=lambda pair: pair[1])

    def swap_in(self, requests):
        tables = {r.request_id: self.host_tables.pop(r.request_id) for r in requests}
        host_ids = list(dict.fromkeys(i for table in tables.values() for i in table))
        blocks = self.block_pool.get_new_blocks(len(host_ids))
        place = dict(zip(host_ids, blocks, strict=True))
        for name, table in tables.items():
            self.req_to_blocks[name] = [place[i] for i in table]
            self.num_cached_blocks[name] = 0
            self.block_pool.touch(self.req_to_blocks[name])
        self.block_pool.free_blocks(blocks)  # each table holds them now, and we no more
        self.free_host_blocks = [*host_ids, *self.free_host_blocks]
        return [(i, place[i].block_id) for i in host_ids]
