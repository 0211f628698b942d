"""Places instead of pieces: the tag is looked for in the text so far."""


def partial_tag_overlap(text, tag):
    for start in range(max(0, len(text) - len(tag) + 1), len(text)):
        if tag.startswith(text[start:]):
            return len(text) - start
    return 0


def find_arguments(call, is_complete):
    rest = call
    while True:
        _, key, rest = rest.partition('"arguments"')
        if not key:
            return "{}" if is_complete else ""
        rest = rest.lstrip()
        if rest.startswith(":"):
            break
    value = rest[1:].lstrip()
    decoder = json.JSONDecoder()
    try:
        end = decoder.raw_decode(value)[1]
    except ValueError:
        value = value.rstrip()
        if is_complete and value.endswith("}"):
            value = value[:-1].rstrip()
        return value
    return value[:end]


class HermesToolParser:
    def extract_streaming(self, delta):
        self.text = self.text + delta
        place = self.text.find(START)
        if place < 0:
            until = len(self.text) - partial_tag_overlap(self.text, START)
            calls = []
        else:
            until, calls = place, self.text[place + len(START) :].split(START)
        news = {}
        content = self.text[self.num_content_sent : until]
        if content:
            news["content"] = content
            self.num_content_sent = until
        changes = []
        for index, call in enumerate(calls):
            changes.extend(self._call_news(index, call))
        if changes:
            news["tool_calls"] = changes
        return news
