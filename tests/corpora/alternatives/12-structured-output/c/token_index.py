"""Token by token for bytes, column by column for states; bits as sums of powers."""


def token_bytes(tokenizer, vocab_size):
    vocab = {i: text for text, i in tokenizer.get_vocab().items()}
    added = tokenizer.added_tokens_decoder
    special = set(tokenizer.all_special_ids) | {i for i, token in added.items() if token.special}
    alphabet = byte_of_character()
    plain = [text for i, text in vocab.items() if i not in special and i not in added]
    is_byte_level = all(character in alphabet for text in plain for character in text)
    result = []
    for i in range(vocab_size):
        if i in special or (i not in vocab and i not in added):
            result.append(b"")
        elif i in added:
            result.append(added[i].content.encode())
        elif is_byte_level:
            result.append(bytes(alphabet[character] for character in vocab[i]))
        elif re.fullmatch("<0x[0-9A-Fa-f]{2}>", vocab[i]):
            result.append(bytes([int(vocab[i][3:5], 16)]))
        else:
            result.append(vocab[i].replace(WORD_BORDER, " ").encode())
    return result


def lift_state(automaton, tokens, state):
    result = np.full(tokens.vocab_size, DEAD, dtype=np.int32)
    walking = np.arange(len(tokens.ids))
    states = np.full(len(walking), state, dtype=np.int32)
    for column in range(tokens.matrix.shape[1]):
        if len(walking) == 0:
            break
        states = automaton.step(states, tokens.matrix[walking, column])
        alive = states != DEAD
        walking, states = walking[alive], states[alive]
        ended = tokens.lengths[walking] == column + 1
        result[tokens.ids[walking[ended]]] = states[ended]
        walking, states = walking[~ended], states[~ended]
    return result


def pack_bits(allowed):
    num_words = (len(allowed) + BITS - 1) // BITS
    padded = np.zeros(num_words * BITS, dtype=np.uint64)
    padded[: len(allowed)] = allowed
    weights = np.uint64(1) << np.arange(BITS, dtype=np.uint64)
    words = (padded.reshape(num_words, BITS) * weights).sum(axis=1, dtype=np.uint64)
    return words.astype(np.uint32).view(np.int32)


def set_bits(words, token_ids, allowed=True):
    unsigned = words.view(np.uint32)
    for token in token_ids:
        bit = np.uint32(1 << (token % BITS))
        if allowed:
            unsigned[token // BITS] |= bit
        else:
            unsigned[token // BITS] &= ~bit


class TokenIndex:
    def row(self, state):
        if state in self._rows:
            self._rows.move_to_end(state)
            return self._rows[state]
        words = pack_bits(lift_state(self.automaton, self.tokens, state) != DEAD)
        self._rows[state] = words
        while len(self._rows) > self._max_rows:
            self._rows.popitem(last=False)
        return words
