"""One small step after the other, and a flag for each row that changes."""


class AdapterLogitsProcessor:
    def update_state(self, batch_update):
        if batch_update is None:
            return
        process_dict_updates(
            self.req_info,
            batch_update,
            lambda params, prompt, output: self._function(params, prompt, output),
        )

    def apply(self, logits):
        for row in sorted(self.req_info):
            result = self.req_info[row](logits[row])
            logits[row] = result
        return logits


def process_dict_updates(req_entries, batch_update, new_state):
    if not batch_update:
        return False
    old = list(req_entries.items())
    for row in batch_update.removed:
        if row in req_entries:
            del req_entries[row]
    for row, params, prompt, output in batch_update.added:
        if row in req_entries:
            del req_entries[row]
        state = new_state(params, prompt, output)
        if state is not None:
            req_entries[row] = state
    for move in batch_update.moved:
        source, target = move[0], move[1]
        is_swap = move[2].name == "SWAP"
        had_source, had_target = source in req_entries, target in req_entries
        first = req_entries.get(source)
        second = req_entries.get(target)
        if had_source:
            del req_entries[source]
        if had_target:
            del req_entries[target]
        if had_source:
            req_entries[target] = first
        if had_target and is_swap:
            req_entries[source] = second
    if len(old) != len(req_entries):
        return True
    return any(req_entries.get(row) is not state for row, state in old)
