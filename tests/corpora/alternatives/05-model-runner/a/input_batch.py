"""Loops over requests and plain lists; an array is made at the very end."""


class InputBatch:
    def add_request(self, state, block_ids, num_computed_tokens):
        row = InputBatch._take_row(self, state)
        length = 0
        for token_id in [*state.prompt_token_ids, *state.output_token_ids]:
            self.token_ids[row, length] = token_id
            length += 1
        self.num_tokens[row] = length
        self.num_computed_tokens[row] = num_computed_tokens
        self.num_blocks[row] = 0
        self.block_table[row] = 0
        self.append_blocks(state.req_id, block_ids)
        return row

    def _take_row(self, state):
        for row, owner in enumerate(self.rows):
            if owner is None:
                self.rows[row] = state
                break
        else:
            row = len(self.rows)
            if row == self.token_ids.shape[0]:
                raise ValueError(f"{state.req_id!r} finds no row: {row} of {row} are taken")
            self.rows.append(state)
        self.req_id_to_row[state.req_id] = row
        return row

    def append_blocks(self, req_id, block_ids):
        row = self.req_id_to_row[req_id]
        for block_id in block_ids:
            self.block_table[row, self.num_blocks[row]] = block_id
            self.num_blocks[row] += 1

    def remove_request(self, req_id):
        if req_id in self.req_id_to_row:
            self.rows[self.req_id_to_row[req_id]] = None
            del self.req_id_to_row[req_id]

    def condense(self):
        while None in self.rows:
            if self.rows[-1] is None:
                self.rows.pop()
            else:
                self._move_row(len(self.rows) - 1, self.rows.index(None))

    def _move_row(self, source, target):
        state = self.rows[source]
        self.rows[source], self.rows[target] = None, state
        self.req_id_to_row[state.req_id] = target
        self.token_ids[target] = self.token_ids[source]
        self.block_table[target] = self.block_table[source]
        for numbers in (self.num_tokens, self.num_computed_tokens, self.num_blocks):
            numbers[target] = numbers[source]

    def append_tokens(self, rows, token_ids):
        for row, token_id in zip(rows.tolist(), token_ids.tolist(), strict=True):
            self.token_ids[row, self.num_tokens[row]] = token_id
            self.num_tokens[row] += 1
            self.rows[row].output_token_ids.append(token_id)

    def slot_mapping(self, rows, positions):
        slots = []
        for row, position in zip(rows.tolist(), positions.tolist(), strict=True):
            number, offset = divmod(position, self.block_size)
            slots.append(int(self.block_table[row, number]) * self.block_size + offset)
        return np.array(slots, dtype=np.int64)


def flatten_tokens(num_scheduled, num_computed):
    starts = np.append(0, np.cumsum(num_scheduled)).astype(np.int32)
    is_first = np.zeros(starts[-1], np.int64)
    is_first[starts[1:-1]] = 1  # of each stretch but the first
    owners = is_first.cumsum()
    shifts = num_computed.astype(np.int64) - starts[:-1]
    return FlatBatch(owners, np.arange(len(owners)) + shifts[owners], starts)


def rows_to_sample(flat, seq_lens, num_tokens):
    sampled, last = [], []
    for request in range(len(seq_lens)):
        if seq_lens[request] >= num_tokens[request]:
            sampled.append(request)
            last.append(int(flat.query_start_loc[request + 1]) - 1)
    return np.array(sampled, np.int64), np.array(last, np.int64)


def decodes_first(num_scheduled):
    decodes, prefills = [], []
    for index, count in enumerate(num_scheduled):
        (decodes if count == 1 else prefills).append(index)
    return np.array(decodes + prefills, dtype=np.int64)
