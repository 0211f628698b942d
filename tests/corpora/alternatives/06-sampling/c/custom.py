"""Who is where: the rows are followed first, the states are looked up at the end."""


class AdapterLogitsProcessor:
    def update_state(self, batch_update):
        if batch_update is not None:
            process_dict_updates(self.req_info, batch_update, self._function)

    def apply(self, logits):
        rows = list(self.req_info)
        for place in range(len(rows)):
            logits[rows[place]] = self.req_info[rows[place]](logits[rows[place]])
        return logits


def process_dict_updates(req_entries, batch_update, new_state):
    def put(row, state):
        if state is None:
            req_entries.pop(row, None)
        else:
            req_entries[row] = state

    if batch_update is None:
        return False
    known = sorted(req_entries.items(), key=lambda pair: pair[0])
    for row in batch_update.removed:
        put(row, None)
    for row, params, prompt_ids, output_ids in batch_update.added:
        put(row, new_state(params, prompt_ids, output_ids))
    for a, b, direction in batch_update.moved:
        of_a, of_b = req_entries.get(a), req_entries.get(b)
        put(b, of_a)
        put(a, of_b if direction == MoveDirectionality.SWAP else None)
    return [(row, id(state)) for row, state in known] != [
        (row, id(req_entries[row])) for row in sorted(req_entries)
    ]
