"""Token by token where the reference goes column by column; words made of Python's integers."""


def token_bytes(tokenizer, vocab_size):
    added = dict(tokenizer.added_tokens_decoder)
    hidden = {i for i in added if added[i].special}.union(tokenizer.all_special_ids)
    alphabet = byte_of_character()
    plain = {i: text for text, i in tokenizer.get_vocab().items() if i not in added}
    byte_level = set("".join(plain.values())) <= set(alphabet)
    texts = []
    for i in range(vocab_size):
        if i in hidden or (i not in added and i not in plain):
            texts.append(b"")
        elif i in added:
            texts.append(added[i].content.encode("utf-8"))
        elif byte_level:
            texts.append(b"".join(alphabet[char].to_bytes(1, "big") for char in plain[i]))
        elif len(plain[i]) == 6 and re.match("<0x[0-9a-fA-F]{2}>", plain[i]):
            texts.append(bytes.fromhex(plain[i][3:5]))
        else:
            texts.append(plain[i].replace("\u2581", " ").encode("utf-8"))
    return texts


def lift_state(automaton, tokens, state):
    after = np.full(tokens.vocab_size, DEAD, dtype=np.int32)
    known = {b"": state}

    def walk(text):
        if text not in known:
            before = walk(text[:-1])
            known[text] = DEAD if before == DEAD else automaton.next(before, text[-1])
        return known[text]

    for token in tokens.ids.tolist():
        after[token] = walk(tokens.texts[token])
    return after


def pack_bits(allowed):
    words = np.zeros(-(-len(allowed) // BITS), dtype=np.uint32)
    for token in np.flatnonzero(allowed).tolist():
        words[token // BITS] |= np.uint32(1) << np.uint32(token % BITS)
    return words.view(np.int32)


def set_bits(words, token_ids, allowed=True):
    for token in token_ids:
        word = int(words[token // BITS]) & 0xFFFFFFFF
        bit = 1 << token % BITS
        word = word | bit if allowed else word & (0xFFFFFFFF - bit)
        words[token // BITS] = word - (1 << 32) if word >> 31 else word


class TokenIndex:
    def row(self, state):
        if state in self._rows:
            row = self._rows.pop(state)
        else:
            row = pack_bits(np.not_equal(lift_state(self.automaton, self.tokens, state), DEAD))
        self._rows[state] = row
        while len(self._rows) > self._max_rows:
            del self._rows[next(iter(self._rows))]
        return row
