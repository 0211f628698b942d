"""Everything is decided on numbers of blocks first; then a plan is carried out."""


class KVCacheManager:
    def cache_blocks(self, request, num_full_blocks):
        table = self.req_to_blocks[request.request_id]
        first = self.num_cached_blocks[request.request_id]
        pairs = list(zip(table, request.block_hashes, strict=False))[first:num_full_blocks]
        if pairs:
            blocks, hashes = zip(*pairs, strict=True)
            self.block_pool.cache_full_blocks(blocks, hashes)
        self.num_cached_blocks[request.request_id] = max(first, num_full_blocks)

    def get_computed_blocks(self, request):
        from itertools import takewhile

        if request.skip_reading_prefix_cache or not self.enable_caching:
            return KVCacheBlocks([]), 0
        limit = max(request.num_tokens - 1, 0) // self.block_size
        looked_up = map(self.block_pool.get_cached_block, request.block_hashes[:limit])
        hits = list(takewhile(lambda block: block is not None, looked_up))
        return KVCacheBlocks(hits), self.block_size * len(hits)

    def _extend_table(self, request_id, hits, num_new_blocks):
        self.block_pool.touch(hits)
        new_blocks = self.block_pool.get_new_blocks(num_new_blocks)
        old = self.req_to_blocks.get(request_id)
        if old is None:
            self.num_cached_blocks[request_id] = len(hits)
        self.req_to_blocks[request_id] = [*(old or []), *hits, *new_blocks]
        return KVCacheBlocks(new_blocks)

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
            raise ValueError("nothing to allocate: num_new_tokens must be at least 1")
        size, name = self.block_size, request.request_id
        hits = [] if new_computed_blocks is None else new_computed_blocks.blocks
        total = num_new_tokens + num_new_computed_tokens + request.num_computed_tokens
        targets = [total + num_lookahead_tokens]
        if full_sequence_must_fit:
            targets.append(request.num_tokens)
        table_length = len(self.req_to_blocks.get(name, ())) + len(hits)
        wanted = []
        for target in targets:
            tokens = target if target < self.max_model_len else self.max_model_len
            wanted.append((tokens + size - 1) // size - table_length)
        revived = sum(1 for block in hits if block.ref_cnt == 0)
        free = self.block_pool.num_free_blocks - reserved_blocks
        if max(*wanted, 0) + revived > free:
            return None
        result = self._extend_table(name, hits, max(wanted[0], 0))
        certain = total if total < request.num_tokens else request.num_tokens
        if self.enable_caching and certain // size > self.num_cached_blocks[name]:
            self.cache_blocks(request, certain // size)
        return result

    def free(self, request):
        self.num_cached_blocks.pop(request.request_id, 0)
        table = self.req_to_blocks.pop(request.request_id, None)
        while table:
            self.block_pool.free_blocks([table.pop()])

    def uncache_blocks(self, request, num_valid_tokens):
        name, valid = request.request_id, num_valid_tokens // self.block_size
        for block in self.req_to_blocks.get(name, [])[valid:]:
            if block.block_hash is not None:
                self.block_pool.evict(block)
        if name in self.num_cached_blocks and self.num_cached_blocks[name] > valid:
            self.num_cached_blocks[name] = valid
