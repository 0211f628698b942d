"""Character by character, with flags and while loops."""


class IncrementalDetokenizer:
    def _append_one_by_one(self, token_ids, num_printable):
        pieces = []
        index = 0
        while index < len(token_ids) and self.stop_reason is None:
            self.num_output_tokens += 1
            if index < num_printable:
                pieces.append(self._search_stop(self._decode(token_ids[index : index + 1])))
            index += 1
        return "".join(pieces)

    def _search_stop(self, new_text):
        text = self._held + new_text
        if self.num_output_tokens > self._min_tokens:
            match = find_stop_string(text, len(new_text), self._stop)
            if match:
                string, start = match
                self.stop_reason, self._held = string, ""
                return text[: start + len(string)] if self._include_stop else text[:start]
        waiting = possible_stop_length(text, self._stop)
        self._held = text[len(text) - waiting :]
        return text[: len(text) - waiting]


class TokenWindow:
    def append(self, token_ids):
        for token_id in token_ids:
            self._tokens.append(token_id)
        complete, text = complete_text(self._tokens, self.decode)
        if complete == 0 and len(self._tokens) > MAX_BROKEN_WINDOW:
            whole = self.decode(self._tokens)
            text = whole[: max(len(whole) - MAX_WAITING, 0)]
        new = text[self._printed :]
        if new:
            self._printed += len(new)
            if complete:
                self._chunk_start = self._chunk_end
                self._chunk_end = complete
        self._slide(complete)
        return new


def complete_text(token_ids, decode):
    whole = decode(token_ids)
    stripped = whole
    while stripped and stripped[-1] == REPLACEMENT:
        stripped = stripped[:-1]
    if stripped == whole:
        return len(token_ids), whole
    dropped = 0
    while dropped < MAX_WAITING and dropped < len(token_ids):
        dropped += 1
        text = decode(token_ids[: len(token_ids) - dropped])
        if len(text) >= len(stripped) and text[-1:] != REPLACEMENT:
            return len(token_ids) - dropped, text
    return 0, stripped


def find_stop_string(text, num_new_chars, stop):
    for string in stop:
        for end in range(len(text) - num_new_chars + 1, len(text) + 1):
            start = end - len(string)
            if start >= 0 and text[start:end] == string:
                return string, start
    return None


def possible_stop_length(text, stop):
    for start in range(len(text)):
        tail = text[start:]
        for string in stop:
            if len(tail) < len(string) and string.startswith(tail):
                return len(tail)
    return 0
