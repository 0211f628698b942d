"""A departing row is found by comparing two halves; flat arrays come from running sums of steps."""


class InputBatch:
    def add_request(self, state, block_ids, num_computed_tokens):
        row = self._take_row(state)
        num_prompt, num_output = len(state.prompt_token_ids), len(state.output_token_ids)
        line = self.token_ids[row]
        line[:num_prompt] = state.prompt_token_ids
        line[num_prompt : num_prompt + num_output] = state.output_token_ids
        self.num_tokens[row] = num_prompt + num_output
        self.num_computed_tokens[row] = num_computed_tokens
        self.block_table[row].fill(0)
        self.block_table[row, : len(block_ids)] = block_ids
        self.num_blocks[row] = len(block_ids)
        return row

    def _take_row(self, state):
        free = [row for row, owner in enumerate(self.rows) if owner is None]
        room = len(self.token_ids) - len(self.rows)
        if not free and not room:
            raise ValueError(f"max_num_seqs is {len(self.token_ids)}, and so many are running")
        if not free:
            free = [len(self.rows)]
            self.rows.append(None)
        self.rows[free[0]] = state
        self.req_id_to_row.update({state.req_id: free[0]})
        return free[0]

    def append_blocks(self, req_id, block_ids):
        row = self.req_id_to_row[req_id]
        old, new = int(self.num_blocks[row]), len(block_ids)
        np.put(self.block_table[row], np.arange(old, old + new), list(block_ids))
        self.num_blocks[row] += new

    def remove_request(self, req_id):
        try:
            row = self.req_id_to_row.pop(req_id)
        except KeyError:
            return
        self.rows[row] = None

    def condense(self):
        wanted = len(self.req_id_to_row)
        holes = [row for row in range(wanted) if self.rows[row] is None]
        behind = [row for row in range(wanted, len(self.rows)) if self.rows[row] is not None]
        for hole, source in zip(holes, behind, strict=True):
            self._move_row(source, hole)
        del self.rows[wanted:]

    def _move_row(self, source, target):
        self.rows[target] = self.rows[source]
        self.rows[source] = None
        self.req_id_to_row[self.rows[target].req_id] = target
        names = ("token_ids", "num_tokens", "num_computed_tokens", "block_table", "num_blocks")
        for name in names:
            array = getattr(self, name)
            array[target, ...] = array[source, ...]

    def append_tokens(self, rows, token_ids):
        ends = np.take(self.num_tokens, rows)
        np.put(self.token_ids, rows * self.token_ids.shape[1] + ends, token_ids)
        np.add.at(self.num_tokens, rows, 1)
        for index in range(len(rows)):
            self.rows[rows[index]].output_token_ids.append(int(token_ids[index]))

    def slot_mapping(self, rows, positions):
        number, offset = np.divmod(positions, self.block_size)
        entries = rows.astype(np.int64) * self.block_table.shape[1] + number
        return self.block_table.ravel()[entries].astype(np.int64) * self.block_size + offset


def flatten_tokens(num_scheduled, num_computed):
    starts = np.concatenate(([0], np.cumsum(num_scheduled))).astype(np.int32)
    index = np.arange(starts[-1], dtype=np.int64)
    owners = np.searchsorted(starts[1:], index, side="right")
    first = num_computed.astype(np.int64) - starts[:-1]
    return FlatBatch(owners, first[owners] + index, starts)


def rows_to_sample(flat, seq_lens, num_tokens):
    (sampled,) = np.nonzero(num_tokens <= seq_lens)
    ends = flat.query_start_loc[1:].astype(np.int64)
    return sampled, np.take(ends, sampled) - 1


def decodes_first(num_scheduled):
    counts = np.array(list(num_scheduled), dtype=np.int64)
    index = np.arange(len(counts))
    return np.concatenate((index[counts == 1], index[counts != 1]))
