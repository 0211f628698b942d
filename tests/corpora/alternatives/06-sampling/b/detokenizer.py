"""Lists of candidates, of which the first or the longest is taken."""


class IncrementalDetokenizer:
    def _append_one_by_one(self, token_ids, num_printable):
        released = ""
        for index in range(len(token_ids)):
            if self.stop_reason:
                return released
            self.num_output_tokens = self.num_output_tokens + 1
            text = self._decode([token_ids[index]]) if index < num_printable else None
            if text is not None:
                released += self._search_stop(text)
        return released

    def _search_stop(self, new_text):
        text, self._held = self._held + new_text, ""
        allowed = self.num_output_tokens > self._min_tokens
        found = find_stop_string(text, len(new_text), self._stop) if allowed else None
        if found is None:
            waiting = possible_stop_length(text, self._stop)
            if waiting:
                text, self._held = text[:-waiting], text[-waiting:]
            return text
        self.stop_reason = found[0]
        return text[: found[1]] + self._include_stop * found[0]


class TokenWindow:
    def append(self, token_ids):
        self._tokens = [*self._tokens, *token_ids]
        num_complete, text = complete_text(self._tokens, self.decode)
        if len(self._tokens) > MAX_BROKEN_WINDOW and not num_complete:
            text = self.decode(self._tokens)[:-MAX_WAITING]
        before = self._printed
        self._printed = max(before, len(text))
        if len(text) > before and num_complete:
            self._chunk_start, self._chunk_end = self._chunk_end, num_complete
        self._slide(num_complete)
        return text[before:]


def complete_text(token_ids, decode):
    size = len(token_ids)
    full = decode(token_ids)
    stripped = full.rstrip(REPLACEMENT)
    if len(stripped) == len(full):
        return size, full
    shorter = [size - 1, size - 2, size - 3]
    decoded = ((n, decode(token_ids[:n])) for n in shorter if n >= 0)
    good = (
        (n, text)
        for n, text in decoded
        if not text.endswith(REPLACEMENT) and len(text) >= len(stripped)
    )
    return next(good, (0, stripped))


def find_stop_string(text, num_new_chars, stop):
    old = len(text) - num_new_chars
    found = [
        (string, start)
        for string in stop
        for start in range(len(text))
        if text.startswith(string, start) and start + len(string) > old
    ]
    return found[0] if found else None


def possible_stop_length(text, stop):
    ends = {string[:length] for string in stop for length in range(1, len(string))}
    return max((len(end) for end in ends if text.endswith(end)), default=0)
