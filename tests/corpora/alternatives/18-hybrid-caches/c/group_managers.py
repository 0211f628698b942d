"""Blocks go and are held one by one; hits are found from a list of all that is there."""


class GroupManager:
    def release_skipped(self, request_id, num_computed_tokens):
        table = self.req_to_blocks.get(request_id, [])
        number = self.num_skipped_tokens(num_computed_tokens) // self.block_size
        for place in reversed(range(min(number, len(table)))):
            if table[place] is self.null_block:
                return
            self.pool.free_blocks([table[place]])
            table[place] = self.null_block

    def add_hits(self, request_id, hits, num_computed_tokens):
        if request_id in self.num_cached_blocks:
            return
        number = self.num_skipped_tokens(num_computed_tokens) // self.block_size
        table = self.req_to_blocks.setdefault(request_id, [])
        for place in range(max(number, len(hits))):
            block = self.null_block if place < number else hits[place]
            if block is not self.null_block:
                self.pool.touch((block,))
            table.append(block)
        self.num_cached_blocks[request_id] = len(table)

    def key(self, request, index, group_id):
        n = self.hashes_per_block
        name = b""
        for part in request.block_hashes[index * n : index * n + n]:
            name = name + part
        return name + bytes(
            [group_id >> 24 & 255, group_id >> 16 & 255, group_id >> 8 & 255, group_id & 255]
        )


class WindowManager:
    def num_skipped_tokens(self, num_computed_tokens):
        newest = num_computed_tokens
        return len(range(newest - self.spec.window + 1)) if newest >= self.spec.window else 0

    def num_neighbours(self):
        return cdiv(self.spec.window - 1, self.block_size)

    def find_hit(self, request, max_length, group_ids, alignment):
        wanted = max(self.num_neighbours(), 1)
        index, runs = 0, []  # the blocks of the run that the walk is in, the last one first
        for index in reversed(range(max_length // self.block_size)):
            blocks = self.look_up(request, index, group_ids)
            if blocks is None:
                runs = []
            elif runs or (index + 1) * self.block_size % alignment == 0:
                runs.append(blocks)
            if len(runs) == wanted:
                break
        before = index if len(runs) == wanted else 0
        rows = [[self.null_block] * len(group_ids)] * before + runs[::-1]
        return [[row[place] for row in rows] for place in range(len(group_ids))]


class LocalManager:
    def num_skipped_tokens(self, num_computed_tokens):
        return num_computed_tokens // self.spec.chunk * self.spec.chunk

    def find_hit(self, request, max_length, group_ids, alignment):
        number = max_length // self.spec.chunk * self.spec.chunk // self.block_size
        tables = [[self.null_block] * number for _ in group_ids]
        while number < max_length // self.block_size:
            blocks = self.look_up(request, number, group_ids)
            if not blocks:
                break
            for table, block in zip(tables, blocks, strict=True):
                table.append(block)
            number += 1
        return self._aligned(tables, alignment)


class StateManager:
    def find_hit(self, request, max_length, group_ids, alignment):
        ends = [
            index
            for index in range(max_length // self.block_size)
            if (index + 1) * self.block_size % alignment == 0
        ]
        for index in reversed(ends):
            if (blocks := self.look_up(request, index, group_ids)) is not None:
                return [[*(self.null_block for _ in range(index)), block] for block in blocks]
        return [[] for _ in group_ids]

    def num_wanted_blocks(
        self, request_id, num_tokens, hits, num_computed_tokens, at_most_peak=False
    ):
        if any(block.block_hash in self.published for block in hits if block.block_hash):
            return self.pool.num_gpu_blocks + 1
        if not self.is_aligned:
            return super().num_wanted_blocks(
                request_id, num_tokens, hits, num_computed_tokens, at_most_peak
            )
        held = len(self.req_to_blocks.get(request_id, ())) + len(hits)
        return (1 if cdiv(num_tokens, self.block_size) > held else 0) + self._num_free(hits)

    def release_skipped(self, request_id, num_computed_tokens):
        super().release_skipped(request_id, num_computed_tokens)
        old = self.last_state.get(request_id)
        if old is None or (num_computed_tokens - 1) // self.block_size <= old:
            return
        table = self.req_to_blocks[request_id]
        if table[old] is not self.null_block:
            self.pool.free_blocks([table[old]])
            table[old] = self.null_block
        del self.last_state[request_id]

    def add_blocks(self, request_id, num_tokens):
        if not self.is_aligned:
            return super().add_blocks(request_id, num_tokens)
        table = self.req_to_blocks.setdefault(request_id, [])
        length = len(table)
        wanted = cdiv(num_tokens, self.block_size)
        if wanted <= length:
            return []
        if length:
            self.last_state[request_id] = length - 1
        while len(table) < wanted - 1:
            table.append(self.null_block)
        table += self.pool.get_new_blocks(1)
        return table[length:]
