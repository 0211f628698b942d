"""One pass over the vocabulary; tokens grouped by length; bits by powers of two."""


def token_bytes(tokenizer, vocab_size):
    alphabet, texts = byte_of_character(), [b""] * vocab_size
    added = tokenizer.added_tokens_decoder

    def is_text(token):
        return not (token in tokenizer.all_special_ids or (token in added and added[token].special))

    ordinary = [(s, i) for s, i in tokenizer.get_vocab().items() if i not in added]
    by_bytes = not any(char not in alphabet for spelled, _ in ordinary for char in spelled)
    for spelled, token in ordinary:
        if token < vocab_size and is_text(token):
            if by_bytes:
                texts[token] = bytes([alphabet[char] for char in spelled])
                continue
            byte = re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", spelled)
            plain = " ".join(spelled.split(WORD_BORDER)).encode()
            texts[token] = plain if byte is None else int(byte[1], 16).to_bytes(1, "little")
    vocabulary = set(tokenizer.get_vocab().values())
    for token, entry in added.items():
        if token < vocab_size and is_text(token) and token in vocabulary:
            texts[token] = entry.content.encode()
    return texts


def lift_state(automaton, tokens, state):
    after = np.full(tokens.vocab_size, DEAD, dtype=np.int32)
    for length in np.unique(tokens.lengths).tolist():
        which = np.flatnonzero(tokens.lengths == length)
        states = np.full(len(which), state, dtype=np.int32)
        for column in range(length):
            alive = states != DEAD
            bytes_read = tokens.matrix[which[alive], column]
            states[alive] = automaton.step(states[alive], bytes_read)
        after[tokens.ids[which]] = states
    return after


def pack_bits(allowed):
    flags = np.asarray(allowed, dtype=np.int64)
    flags = np.concatenate([flags, np.zeros(-len(flags) % BITS, dtype=np.int64)])
    return (flags.reshape(-1, BITS) << np.arange(BITS)).sum(axis=1).astype(np.uint32).view(np.int32)


def set_bits(words, token_ids, allowed=True):
    for token in token_ids:
        byte = words.view(np.uint8)[4 * (token // BITS) + token % BITS // 8 :][:1]
        mask = np.uint8(1 << token % 8)
        if allowed:
            byte |= mask
        else:
            byte &= ~mask


class TokenIndex:
    def row(self, state):
        try:
            self._rows.move_to_end(state)
        except KeyError:
            after = lift_state(self.automaton, self.tokens, state)
            self._rows[state] = pack_bits(after >= 0)
            if len(self._rows) > self._max_rows:
                self._rows.pop(min(self._rows, key=list(self._rows).index))
        return self._rows[state]
