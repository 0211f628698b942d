"""Tables are built anew and put in place of the old ones; what is findable is counted by hashes."""


class BlockManager:
    def fork(self, parent, child, num_tokens):
        from itertools import takewhile

        last, rest = divmod(num_tokens, self.block_size)
        table = self.req_to_blocks[parent.request_id]
        own = [*table[:last], *(table[last : last + 1] if rest else [])]
        findable = list(takewhile(lambda block: block.block_hash is not None, own[:last]))
        child.num_computed_tokens = num_tokens
        self.num_cached_blocks[child.request_id] = len(findable)
        self.req_to_blocks[child.request_id] = own
        for block in own:
            self.block_pool.touch([block])

    def append(self, request, num_slots):
        name, index = request.request_id, request.num_computed_tokens // self.block_size
        if self.num_blocks_to_append(request, num_slots) > self.num_free_blocks:
            raise ValueError("too few blocks are free")
        old = self.req_to_blocks[name]
        before, here, after = old[:index], old[index : index + 1], old[index + 1 :]
        shared = [block for block in here if block.ref_cnt > 1]
        self.block_pool.free_blocks(shared)
        copies = self.block_pool.get_new_blocks(len(shared))
        table = [*before, *(copies or here), *after]
        added = []
        while len(table) + len(added) < self._num_blocks(num_slots):
            added += self.block_pool.get_new_blocks(1)
        self.req_to_blocks[name] = table + added
        pairs = zip(shared, copies, strict=True)
        return KVCacheBlocks(added), [(old.block_id, new.block_id) for old, new in pairs]

    def swap_out(self, requests):
        pairs = []

        def on_host(block):
            for device_id, host_id in pairs:
                if device_id == block.block_id:
                    return host_id
            pairs.append((block.block_id, self.free_host_blocks.pop(0)))
            return pairs[-1][1]

        for request in requests:
            table = list(map(on_host, self._computed(request)))
            self.free(request)
            self.host_tables[request.request_id] = table
        return pairs

    def swap_in(self, requests):
        pairs = []

        def on_device(host_id):
            for known, block_id in pairs:
                if known == host_id:
                    block = self.block_pool.blocks[block_id]
                    self.block_pool.touch([block])
                    return block
            [block] = self.block_pool.get_new_blocks(1)
            pairs.append((host_id, block.block_id))
            return block

        for name in [request.request_id for request in requests]:
            self.req_to_blocks[name] = list(map(on_device, self.host_tables[name]))
            self.num_cached_blocks[name] = 0
            del self.host_tables[name]
        self.free_host_blocks = self.free_host_blocks + [host_id for host_id, _ in pairs]
        return pairs
