"""One token at a time; the row is put together and written once."""


class NativeGrammar:
    def accept_tokens(self, request_id, tokens):
        before, was_over = list(self._history), self._terminated
        for token in tokens:
            step = self._walk([token])
            if not step:
                self._history, self._terminated = before, was_over
                return False
            self._history = [*self._history, *step]
            self._terminated = token in self.stop_token_ids
        return True

    def rollback(self, num_tokens):
        count = self.num_processed_tokens
        if num_tokens not in range(count + 1):
            raise ValueError(f"cannot take {num_tokens} tokens back: {count} were accepted")
        for _ in range(num_tokens):
            self._history.pop()
            self._terminated = False

    def fill_bitmask(self, bitmask, batch_index):
        words = np.asarray(bitmask)
        if self._terminated:
            words[batch_index, :] = np.zeros(words.shape[1], dtype=words.dtype)
            return
        row = self.index.row(self.state).copy()
        if self.index.automaton.is_accepting(self.state):
            for token in self.stop_token_ids:
                if token < 32 * len(row):
                    set_bits(row, [token], True)
        elif np.count_nonzero(row) == 0:
            raise ValueError("the grammar needs a text that no token can continue")
        words[batch_index] = row

    def _walk(self, tokens):
        here, over, states = self.state, self._terminated, []
        for token in tokens:
            ends = token in self.stop_token_ids
            if over or (ends and not self.index.automaton.is_accepting(here)):
                return states
            if not ends:
                here = self.index.walk(here, token)
                if here == DEAD:
                    return states
            over = over or ends
            states.append(here)
        return states
