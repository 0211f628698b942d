"""A table of all rows, None where nothing is known; then back into the dictionary."""


class AdapterLogitsProcessor:
    def update_state(self, batch_update):
        make = self._function
        process_dict_updates(self.req_info, batch_update, new_state=make)

    def apply(self, logits):
        changed = {row: function(logits[row]) for row, function in self.req_info.items()}
        for row, values in changed.items():
            logits[row].copy_(values)
        return logits


def process_dict_updates(req_entries, batch_update, new_state):
    if batch_update is None:
        return False
    from collections import defaultdict

    table = defaultdict(lambda: None, req_entries)
    table.update(dict.fromkeys(batch_update.removed))
    table.update({row: new_state(*request) for row, *request in batch_update.added})
    for a, b, direction in batch_update.moved:
        both = direction == MoveDirectionality.SWAP
        table[b], table[a] = table[a], table[b] if both else None
    now = {row: state for row, state in table.items() if state is not None}
    same = now.keys() == req_entries.keys() and all(now[r] is req_entries[r] for r in now)
    req_entries.clear()
    req_entries.update(now)
    return not same
