"""Tables are cut into slices; what is found is written down first and judged afterwards."""


class GroupManager:
    def release_skipped(self, request_id, num_computed_tokens):
        table = self.req_to_blocks.get(request_id)
        if not table:
            return
        end = min(self.num_skipped_tokens(num_computed_tokens) // self.block_size, len(table))
        start = end
        while start > 0 and table[start - 1] is not self.null_block:
            start -= 1
        self.pool.free_blocks(list(reversed(table[start:end])))
        table[start:end] = [self.null_block] * (end - start)

    def add_hits(self, request_id, hits, num_computed_tokens):
        if request_id not in self.num_cached_blocks:
            skipped = self.num_skipped_tokens(num_computed_tokens) // self.block_size
            table = [self.null_block if i < skipped else b for i, b in enumerate(hits)]
            table = [self.null_block] * (skipped - len(hits)) + table
            for block in table:
                if block.block_id != self.null_block.block_id:
                    self.pool.touch([block])
            self.req_to_blocks.setdefault(request_id, []).extend(table)
            self.num_cached_blocks[request_id] = len(self.req_to_blocks[request_id])

    def key(self, request, index, group_id):
        import struct

        first = index * self.hashes_per_block
        name = bytearray()
        for place in range(first, first + self.hashes_per_block):
            name += request.block_hashes[place]
        return bytes(name) + struct.pack(">I", group_id)


class WindowManager:
    def num_skipped_tokens(self, num_computed_tokens):
        first_read = num_computed_tokens - (self.spec.window - 1)
        return first_read if first_read > 0 else 0

    def num_neighbours(self):
        return -(-(self.spec.window - 1) // self.block_size)

    def find_hit(self, request, max_length, group_ids, alignment):
        wanted = self.num_neighbours()
        end, tables = 0, []
        index = max_length // self.block_size - 1
        while index >= 0:
            blocks = self.look_up(request, index, group_ids)
            index -= 1
            if blocks is None:
                tables = []
                continue
            if not tables:
                end = index + 2
                if end * self.block_size % alignment:
                    continue
            tables.insert(0, blocks)
            if len(tables) >= wanted:
                break
        else:
            hit = [[row[g] for row in tables] for g in range(len(group_ids))]
            return self._aligned(hit, alignment)
        nulls = [self.null_block] * (end - len(tables))
        return [nulls + [row[g] for row in tables] for g in range(len(group_ids))]


class LocalManager:
    def num_skipped_tokens(self, num_computed_tokens):
        return num_computed_tokens - num_computed_tokens % self.spec.chunk

    def find_hit(self, request, max_length, group_ids, alignment):
        chunk = max_length - max_length % self.spec.chunk
        index = chunk // self.block_size
        rows = [[self.null_block] * len(group_ids)] * index
        while (index + 1) * self.block_size <= max_length:
            blocks = self.look_up(request, index, group_ids)
            if blocks is None:
                break
            rows = rows + [blocks]
            index += 1
        return [[row[g] for row in rows] for g in range(len(group_ids))]


class StateManager:
    def find_hit(self, request, max_length, group_ids, alignment):
        index = max_length // self.block_size
        while index:
            index -= 1
            if (index + 1) * self.block_size % alignment:
                continue
            if blocks := self.look_up(request, index, group_ids):
                tables = [[self.null_block] * (index + 1) for _ in group_ids]
                for table, block in zip(tables, blocks, strict=True):
                    table[index] = block
                return tables
        return [[] for _ in group_ids]

    def num_wanted_blocks(
        self, request_id, num_tokens, hits, num_computed_tokens, at_most_peak=False
    ):
        for block in hits[-1:]:
            if block.block_hash in self.published:
                return 2 * self.pool.num_gpu_blocks
        if self.is_aligned:
            places = len(hits) + len(self.req_to_blocks.get(request_id, []))
            grows = places * self.block_size < num_tokens
            return int(grows) + self._num_free(hits)
        return GroupManager.num_wanted_blocks(
            self, request_id, num_tokens, hits, num_computed_tokens
        )

    def release_skipped(self, request_id, num_computed_tokens):
        GroupManager.release_skipped(self, request_id, num_computed_tokens)
        if request_id in self.last_state:
            place, table = self.last_state[request_id], self.req_to_blocks[request_id]
            has_moved = (place + 1) * self.block_size < num_computed_tokens
            if has_moved and table[place] is not self.null_block:
                old, table[place] = table[place], self.null_block
                self.pool.free_blocks([old])

    def add_blocks(self, request_id, num_tokens):
        if self.is_aligned:
            table = self.req_to_blocks.setdefault(request_id, [])
            missing = -(-num_tokens // self.block_size) - len(table)
            new = []
            if missing > 0:
                if table:
                    self.last_state[request_id] = len(table) - 1
                new = [self.null_block] * missing
                (new[-1],) = self.pool.get_new_blocks(1)
                table.extend(new)
            return new
        return GroupManager.add_blocks(self, request_id, num_tokens)
