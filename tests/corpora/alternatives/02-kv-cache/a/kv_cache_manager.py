"""Tables grow block by block; the check before it is a sum of needs."""


class KVCacheManager:
    def cache_blocks(self, request, num_full_blocks):
        name = request.request_id
        for index in range(self.num_cached_blocks[name], num_full_blocks):
            block = self.req_to_blocks[name][index]
            self.block_pool.cache_full_blocks([block], [request.block_hashes[index]])
        self.num_cached_blocks[name] = num_full_blocks

    def get_computed_blocks(self, request):
        found = []
        readable = self.enable_caching and not request.skip_reading_prefix_cache
        for index, block_hash in enumerate(request.block_hashes if readable else ()):
            if (index + 1) * self.block_size >= request.num_tokens:
                break
            block = self.block_pool.get_cached_block(block_hash)
            if block is None:
                break
            found.append(block)
        return KVCacheBlocks(found), self.block_size * len(found)

    def _extend_table(self, request_id, hits, num_new_blocks):
        if request_id not in self.req_to_blocks:
            self.req_to_blocks[request_id] = []
            self.num_cached_blocks[request_id] = len(hits)
        self.block_pool.touch(hits)
        fresh = self.block_pool.get_new_blocks(num_new_blocks) if num_new_blocks else []
        self.req_to_blocks[request_id] += [*hits, *fresh]
        return KVCacheBlocks(fresh)

    def allocate_slots(
        self,
        request,
        num_new_tokens,
        num_new_computed_tokens=0,
        new_computed_blocks=None,
        num_lookahead_tokens=0,
        full_sequence_must_fit=False,
        reserved_blocks=0,
    ):
        if num_new_tokens <= 0:
            raise ValueError(f"{num_new_tokens} new tokens; at least 1 is needed")
        hits = list(new_computed_blocks.blocks) if new_computed_blocks else []
        held = len(self.req_to_blocks.get(request.request_id, [])) + len(hits)
        after = request.num_computed_tokens + num_new_computed_tokens + num_new_tokens

        def blocks_for(tokens):
            return max(0, cdiv(min(tokens, self.max_model_len), self.block_size) - held)

        fresh = blocks_for(after + num_lookahead_tokens)
        need = max(fresh, blocks_for(request.num_tokens)) if full_sequence_must_fit else fresh
        sleeping = len([block for block in hits if not block.ref_cnt])
        if need + sleeping + reserved_blocks > self.block_pool.num_free_blocks:
            return None
        given = self._extend_table(request.request_id, hits, fresh)
        if self.enable_caching:
            full = min(after, request.num_tokens) // self.block_size
            if self.num_cached_blocks[request.request_id] < full:
                self.cache_blocks(request, full)
        return given

    def free(self, request):
        if request.request_id in self.req_to_blocks:
            table = self.req_to_blocks.pop(request.request_id)
            del self.num_cached_blocks[request.request_id]
            self.block_pool.free_blocks(table[::-1])

    def uncache_blocks(self, request, num_valid_tokens):
        valid = num_valid_tokens // self.block_size
        table = self.req_to_blocks.get(request.request_id, [])
        for index, block in enumerate(table):
            if index >= valid:
                self.block_pool.evict(block)
        if self.num_cached_blocks.get(request.request_id, 0) > valid:
            self.num_cached_blocks[request.request_id] = valid
