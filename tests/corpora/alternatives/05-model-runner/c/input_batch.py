"""All moves of a step at once; flat arrays from masks and from stretches put together."""


def arrays_of(batch):
    yield from (batch.token_ids, batch.block_table)
    yield from (batch.num_tokens, batch.num_computed_tokens, batch.num_blocks)


class InputBatch:
    def add_request(self, state, block_ids, num_computed_tokens):
        row = self._take_row(state)
        for array in arrays_of(self):
            array[row] = 0
        tokens = np.array([*state.prompt_token_ids, *state.output_token_ids], dtype=np.int64)
        self.token_ids[row, : tokens.size] = tokens
        self.num_tokens[row], self.num_computed_tokens[row] = tokens.size, num_computed_tokens
        self.append_blocks(state.req_id, block_ids)
        return row

    def _take_row(self, state):
        limit = self.token_ids.shape[0]
        row = next((r for r in range(limit) if self.rows[r : r + 1] in ([], [None])), None)
        if row is None:
            raise ValueError(f"no row is free among {limit}; set a larger max_num_seqs")
        self.rows[row : row + 1] = [state]
        self.req_id_to_row[state.req_id] = row
        return row

    def append_blocks(self, req_id, block_ids):
        row = self.req_id_to_row[req_id]
        table = [*self.block_table[row, : self.num_blocks[row]].tolist(), *block_ids]
        self.block_table[row, : len(table)] = table
        self.num_blocks[row] = len(table)

    def remove_request(self, req_id):
        self.rows[:] = [None if s is not None and s.req_id == req_id else s for s in self.rows]
        self.req_id_to_row.pop(req_id, None)

    def condense(self):
        def close(front, back):
            if front >= back:
                return
            if self.rows[front] is not None:
                close(front + 1, back)
            elif self.rows[back - 1] is None:
                close(front, back - 1)
            else:
                self._move_row(back - 1, front)
                close(front + 1, back - 1)

        close(0, len(self.rows))
        self.rows = self.rows[: self.num_reqs]

    def _move_row(self, source, target):
        for array in arrays_of(self):
            array[[target]] = array[[source]]
        self.rows[target], self.rows[source] = self.rows[source], self.rows[target]
        self.req_id_to_row |= {self.rows[target].req_id: target}

    def append_tokens(self, rows, token_ids):
        after = self.num_tokens[rows] + 1
        self.token_ids[rows, after - 1] = token_ids
        self.num_tokens[rows] = after
        for row, token_id in zip(rows, token_ids, strict=True):
            self.rows[row].output_token_ids += [int(token_id)]

    def slot_mapping(self, rows, positions):
        within = np.arange(self.block_size)
        slots = self.block_table.astype(np.int64)[:, :, None] * self.block_size + within
        return slots.reshape(len(self.block_table), -1)[rows, positions]


def flatten_tokens(num_scheduled, num_computed):
    columns = np.arange(num_scheduled.max())
    owners, offsets = np.nonzero(columns[None, :] < num_scheduled[:, None])
    starts = np.zeros(num_scheduled.size + 1, dtype=np.int32)
    starts[1:] = np.add.accumulate(num_scheduled)
    return FlatBatch(owners, offsets + num_computed.astype(np.int64)[owners], starts)


def rows_to_sample(flat, seq_lens, num_tokens):
    ready = ~(seq_lens < num_tokens)
    last = flat.query_start_loc.astype(np.int64)[1:] - 1
    return np.arange(len(ready))[ready], last[ready]


def decodes_first(num_scheduled):
    counts = list(num_scheduled)
    order = sorted(range(len(counts)), key=lambda index: counts[index] > 1)
    return np.asarray(order, dtype=np.int64)
