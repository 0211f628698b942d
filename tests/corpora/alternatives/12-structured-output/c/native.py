"""A walk that knows whether the text has ended; the history popped."""


class NativeGrammar:
    def _walk(self, tokens):
        states = []
        state, ended = self.state, self._terminated
        for token in tokens:
            if ended:
                break
            if token in self.stop_token_ids:
                if not self.index.automaton.is_accepting(state):
                    break
                ended = True
            else:
                state = self.index.walk(state, token)
                if state == DEAD:
                    break
            states.append(state)
        return states

    def accept_tokens(self, request_id, tokens):
        states = self._walk(tokens)
        if len(states) != len(tokens):
            return False
        self._history.extend(states)
        if any(token in self.stop_token_ids for token in tokens):
            self._terminated = True
        return True

    def rollback(self, num_tokens):
        if num_tokens > self.num_processed_tokens:
            raise ValueError(
                f"cannot take {num_tokens} tokens back of {self.num_processed_tokens} accepted ones"
            )
        for _ in range(num_tokens):
            self._history.pop()
            self._terminated = False

    def fill_bitmask(self, bitmask, batch_index):
        row = np.asarray(bitmask)[batch_index]
        if self._terminated:
            row[:] = 0
            return
        row[:] = self.index.row(self.state)
        if self.index.automaton.is_accepting(self.state):
            set_bits(row, [t for t in self.stop_token_ids if t // 32 < len(row)])
        elif not row.any():
            raise ValueError("no token of the vocabulary can go on, and the text cannot end here")
