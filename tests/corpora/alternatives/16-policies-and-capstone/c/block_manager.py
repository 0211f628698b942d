"""Blocks move in another order: last member and last block first; slices take and put back."""


class BlockManager:
    def fork(self, parent, child, num_tokens):
        starts = range(0, num_tokens, self.block_size)
        shared = [self.req_to_blocks[parent.request_id][i // self.block_size] for i in starts]
        full = [i for i in starts if i + self.block_size <= num_tokens]
        findable = full[: self.num_cached_blocks[parent.request_id]]
        self.block_pool.touch(shared)
        self.req_to_blocks |= {child.request_id: shared}
        self.num_cached_blocks |= {child.request_id: len(findable)}
        child.num_computed_tokens = num_tokens

    def append(self, request, num_slots):
        table, copies = self.req_to_blocks[request.request_id], []
        missing = max(self._num_blocks(num_slots) - len(table), 0)
        if missing + int(self._must_copy(request)) > self.block_pool.num_free_blocks:
            raise ValueError(f"{missing} blocks and perhaps a copy are more than there are")
        if self._must_copy(request):
            index = request.num_computed_tokens // self.block_size
            original = table[index]
            table[index : index + 1] = self.block_pool.get_new_blocks(1)
            copies = [(original.block_id, table[index].block_id)]
            self.block_pool.free_blocks([original])
        held = len(table)
        for _ in range(held, self._num_blocks(num_slots)):
            table.extend(self.block_pool.get_new_blocks(1))
        return KVCacheBlocks(table[held:]), copies

    def swap_out(self, requests):
        from collections import defaultdict

        place = defaultdict(self.free_host_blocks.pop)
        for request in reversed(requests):
            table = [place[block.block_id] for block in reversed(self._computed(request))]
            self.host_tables[request.request_id] = table[::-1]
        for request in requests:
            self.block_pool.free_blocks(reversed(self.req_to_blocks.pop(request.request_id)))
            del self.num_cached_blocks[request.request_id]
        return list(place.items())

    def swap_in(self, requests):
        place = {}
        for request in reversed(requests):
            table = []
            for host_id in reversed(self.host_tables.pop(request.request_id)):
                known = place.get(host_id)
                if known is None:
                    place[host_id] = self.block_pool.get_new_blocks(1)[0]
                else:
                    known.ref_cnt += 1
                table.insert(0, place[host_id])
            self.req_to_blocks[request.request_id] = table
            self.num_cached_blocks[request.request_id] = 0
        pairs = [(host_id, block.block_id) for host_id, block in place.items()]
        self.free_host_blocks += [host_id for host_id, _ in pairs]
        return pairs
