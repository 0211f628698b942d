"""A walk that says how far it came; the end is asked of the history's length."""


class NativeGrammar:
    def accept_tokens(self, request_id, tokens):
        states = self._walk(tokens)
        if len(states) != len(tokens):
            return False
        for token, state in zip(tokens, states, strict=True):
            self._history.append(state)
            if token in self.stop_token_ids:
                self._terminated = True
        return True

    def rollback(self, num_tokens):
        if num_tokens < 0 or num_tokens > len(self._history) - 1:
            raise ValueError(
                f"cannot take {num_tokens} tokens back: {len(self._history) - 1} were accepted"
            )
        if num_tokens > 0:
            self._terminated = False
        self._history = self._history[: len(self._history) - num_tokens]

    def fill_bitmask(self, bitmask, batch_index):
        row = np.asarray(bitmask)[batch_index]
        if self.is_terminated():
            row.fill(0)
            return
        may_end = self.index.automaton.is_accepting(self._history[-1])
        np.copyto(row, self.index.row(self._history[-1]))
        ends = sorted(token for token in self.stop_token_ids if token // 32 < len(row))
        if may_end:
            set_bits(row, ends)
        if not may_end and not np.any(row != 0):
            raise ValueError("no token of the vocabulary can continue the text of the grammar")

    def _walk(self, tokens):
        states = []
        if self._terminated:
            return states
        here = self._history[-1]
        for token in tokens:
            is_end = token in self.stop_token_ids
            if is_end and self.index.automaton.is_accepting(here):
                states.append(here)
                return states
            there = DEAD if is_end else self.index.walk(here, token)
            if there == DEAD:
                return states
            states.append(there)
            here = there
        return states
