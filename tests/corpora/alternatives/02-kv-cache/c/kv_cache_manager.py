"""The two cases of a request, new and old, are told apart from the beginning."""


class KVCacheManager:
    def cache_blocks(self, request, num_full_blocks):
        name = request.request_id
        while self.num_cached_blocks[name] < num_full_blocks:
            index = self.num_cached_blocks[name]
            self.block_pool.cache_full_blocks(
                self.req_to_blocks[name][index : index + 1],
                request.block_hashes[index : index + 1],
            )
            self.num_cached_blocks[name] = index + 1

    def get_computed_blocks(self, request):
        hits = []
        if self.enable_caching and not request.skip_reading_prefix_cache:
            hashes = iter(request.block_hashes)
            while (len(hits) + 1) * self.block_size < request.num_tokens:
                block = self.block_pool.get_cached_block(next(hashes, b""))
                if block is None:
                    break
                hits.append(block)
        return KVCacheBlocks(hits), sum(self.block_size for _ in hits)

    def _extend_table(self, request_id, hits, num_new_blocks):
        known = request_id in self.req_to_blocks
        table = self.req_to_blocks[request_id] if known else []
        for block in hits:
            self.block_pool.touch([block])
            table.append(block)
        start = len(table)
        for _ in range(num_new_blocks):
            table.extend(self.block_pool.get_new_blocks(1))
        if not known:
            self.req_to_blocks[request_id] = table
            self.num_cached_blocks[request_id] = len(hits)
        return KVCacheBlocks(table[start:])

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
        if num_new_tokens < 1:
            raise ValueError(f"num_new_tokens must be positive, not {num_new_tokens}")
        hits = new_computed_blocks.blocks if new_computed_blocks is not None else []
        name = request.request_id
        room = (len(self.req_to_blocks.get(name, [])) + len(hits)) * self.block_size
        reached = request.num_computed_tokens + num_new_computed_tokens + num_new_tokens
        lacking = min(reached + num_lookahead_tokens, self.max_model_len) - room
        new_blocks = cdiv(lacking, self.block_size) if lacking > 0 else 0
        reserved = new_blocks
        if full_sequence_must_fit:
            rest = min(request.num_tokens, self.max_model_len) - room
            reserved = max(reserved, cdiv(rest, self.block_size) if rest > 0 else 0)
        for block in hits:
            reserved += block.ref_cnt == 0
        if reserved + reserved_blocks > self.block_pool.num_free_blocks:
            return None
        extended = self._extend_table(name, hits, new_blocks)
        if self.enable_caching:
            self.cache_blocks(request, min(reached, request.num_tokens) // self.block_size)
        return extended

    def free(self, request):
        name = request.request_id
        table = list(self.req_to_blocks.get(name, []))
        table.reverse()
        self.block_pool.free_blocks(table)
        for book in (self.req_to_blocks, self.num_cached_blocks):
            if name in book:
                del book[name]

    def uncache_blocks(self, request, num_valid_tokens):
        name = request.request_id
        if name not in self.req_to_blocks:
            return
        valid = num_valid_tokens // self.block_size
        for block in reversed(self.req_to_blocks[name][valid:]):
            self.block_pool.evict(block)
        self.num_cached_blocks[name] = min(valid, self.num_cached_blocks[name])
