"""Regular expressions and borders of strings."""


class IncrementalDetokenizer:
    def _append_one_by_one(self, token_ids, num_printable):
        def released():
            for index, token_id in enumerate(token_ids):
                if self.stop_reason is not None:
                    return
                self.num_output_tokens += 1
                if index < num_printable:
                    yield self._search_stop(self._decode((token_id,)))

        return "".join(released())

    def _search_stop(self, new_text):
        text = self._held + new_text
        match = find_stop_string(text, len(new_text), self._stop)
        if match is None or self.num_output_tokens <= self._min_tokens:
            end = len(text) - possible_stop_length(text, self._stop)
            kept = text[end:]
        else:
            self.stop_reason, end = match
            kept = ""
            if self._include_stop:
                end += len(self.stop_reason)
        self._held = kept
        return text[:end]


class TokenWindow:
    def append(self, token_ids):
        self._tokens += list(token_ids)
        num_complete, text = complete_text(self._tokens, self.decode)
        broken = num_complete == 0 and len(self._tokens) > MAX_BROKEN_WINDOW
        if broken:
            text = self.decode(self._tokens)[: -1 * MAX_WAITING]
        printed, self._printed = self._printed, max(self._printed, len(text))
        new_text = text[printed:]
        if new_text and num_complete:
            self._chunk_start = self._chunk_end
            self._chunk_end = num_complete
        self._slide(num_complete)
        return new_text


def complete_text(token_ids, decode):
    import re

    text = decode(token_ids)
    unfinished = re.search(f"{REPLACEMENT}+\\Z", text)
    if unfinished is None:
        return len(token_ids), text

    def without(dropped):
        length = len(token_ids) - dropped
        if dropped > MAX_WAITING or length < 0:
            return 0, text[: unfinished.start()]
        shorter = decode(token_ids[:length])
        if shorter.endswith(REPLACEMENT) or len(shorter) < unfinished.start():
            return without(dropped + 1)
        return length, shorter

    return without(1)


def find_stop_string(text, num_new_chars, stop):
    import re

    for string in stop:
        for match in re.finditer(f"(?={re.escape(string)})", text):
            if match.start() + len(string) > len(text) - num_new_chars:
                return string, match.start()
    return None


def possible_stop_length(text, stop):
    longest = 0
    for string in stop:
        border, borders = 0, [0]
        for index in range(1, len(string)):
            while border and string[index] != string[border]:
                border = borders[border - 1]
            border += string[index] == string[border]
            borders.append(border)
        state = 0
        for character in text:
            while state and (state == len(string) or string[state] != character):
                state = borders[state - 1]
            state += string[state] == character
        longest = max(longest, borders[state - 1] if state == len(string) else state)
    return longest
