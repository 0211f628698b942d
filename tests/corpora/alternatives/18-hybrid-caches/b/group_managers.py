"""Generators and `itertools`; tables are made anew and put in place of the old ones."""


class GroupManager:
    def release_skipped(self, request_id, num_computed_tokens):
        from itertools import takewhile

        table = self.req_to_blocks.get(request_id, [])
        end = min(self.num_skipped_tokens(num_computed_tokens) // self.block_size, len(table))
        places = range(end - 1, -1, -1)
        going = list(takewhile(lambda place: table[place] is not self.null_block, places))
        self.pool.free_blocks([table[place] for place in going])
        for place in going:
            table[place] = self.null_block

    def add_hits(self, request_id, hits, num_computed_tokens):
        if request_id in self.num_cached_blocks:
            return
        hits = list(hits)
        skipped = self.num_skipped_tokens(num_computed_tokens) // self.block_size
        hits[:skipped] = [self.null_block] * skipped
        self.pool.touch(block for block in hits if block.block_id)
        self.req_to_blocks[request_id] = hits
        self.num_cached_blocks[request_id] = len(hits)

    def key(self, request, index, group_id):
        end = (index + 1) * self.hashes_per_block
        own = list(request.block_hashes[end - self.hashes_per_block : end])
        return b"".join([*own, group_id.to_bytes(length=4, byteorder="big")])


class WindowManager:
    def num_skipped_tokens(self, num_computed_tokens):
        return max(num_computed_tokens + 1 - self.spec.window, 0)

    def num_neighbours(self):
        from math import ceil

        return ceil((self.spec.window - 1) / self.block_size)

    def find_hit(self, request, max_length, group_ids, alignment):
        number, wanted = max_length // self.block_size, max(self.num_neighbours(), 1)
        step = alignment // self.block_size
        known = {}

        def has(index):
            if index not in known:
                known[index] = self.look_up(request, index, group_ids)
            return known[index]

        end = number - number % step
        while end > 0:
            start = end
            while start > max(end - wanted, 0) and has(start - 1) is not None:
                start -= 1
            if end - start >= wanted or start == 0:
                nulls = [self.null_block] * start
                return [
                    nulls + [known[i][g] for i in range(start, end)] for g in range(len(group_ids))
                ]
            end -= step
        return [[] for _ in group_ids]


class LocalManager:
    def num_skipped_tokens(self, num_computed_tokens):
        chunks, _ = divmod(num_computed_tokens, self.spec.chunk)
        return chunks * self.spec.chunk

    def find_hit(self, request, max_length, group_ids, alignment):
        from itertools import takewhile

        start = self.num_skipped_tokens(max_length) // self.block_size
        looked = (
            self.look_up(request, i, group_ids) for i in range(start, max_length // self.block_size)
        )
        rows = list(takewhile(lambda blocks: blocks is not None, looked))
        return [
            [self.null_block] * start + [row[g] for row in rows] for g, _ in enumerate(group_ids)
        ]


class StateManager:
    def find_hit(self, request, max_length, group_ids, alignment):
        step = alignment // self.block_size
        number = max_length // self.block_size
        for end in range(number - number % step, 0, -step):
            blocks = self.look_up(request, end - 1, group_ids)
            if blocks is not None:
                return [[self.null_block] * (end - 1) + [block] for block in blocks]
        return [[] for _ in group_ids]

    def num_wanted_blocks(
        self, request_id, num_tokens, hits, num_computed_tokens, at_most_peak=False
    ):
        is_unwritten = bool(hits) and hits[-1].block_hash in self.published
        if is_unwritten:
            return len(self.pool.blocks) + 5
        if not self.is_aligned:
            return super().num_wanted_blocks(request_id, num_tokens, hits, num_computed_tokens)
        table = [*self.req_to_blocks.get(request_id, ()), *hits]
        is_long = len(table) >= cdiv(num_tokens, self.block_size)
        free = [b for b in hits if b is not self.null_block and b.ref_cnt == 0]
        return len(free) + (0 if is_long else 1)

    def release_skipped(self, request_id, num_computed_tokens):
        super().release_skipped(request_id, num_computed_tokens)
        last = self.last_state.get(request_id, num_computed_tokens)
        if last + 1 < cdiv(num_computed_tokens, self.block_size):
            table = self.req_to_blocks[request_id]
            going = [b for b in table[last : last + 1] if b is not self.null_block]
            self.pool.free_blocks(going)
            table[last] = self.null_block

    def add_blocks(self, request_id, num_tokens):
        if not self.is_aligned:
            return super().add_blocks(request_id, num_tokens)
        old = self.req_to_blocks.get(request_id, [])
        more = cdiv(num_tokens, self.block_size) - len(old)
        new = [self.null_block] * (more - 1) + self.pool.get_new_blocks(1) if more > 0 else []
        if old and new:
            self.last_state[request_id] = len(old) - 1
        self.req_to_blocks[request_id] = old + new
        return new
