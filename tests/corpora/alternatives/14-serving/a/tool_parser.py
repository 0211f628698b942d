"""Places instead of pieces: the tag is looked for in the text so far."""


def partial_tag_overlap(text, tag):
    for start in range(max(0, len(text) - len(tag) + 1), len(text)):
        if tag.startswith(text[start:]):
            return len(text) - start
    return 0


def find_arguments(call):
    key = next((key for key in call.members if key in ("arguments", "parameters")), None)
    if key is None:
        return "{}" * call.is_whole
    member = call.members[key]
    value = call.text[member.start : member.end]
    if value[0] in "{[":
        return value
    if member.end is None:
        return ""
    if value[0] != '"':
        return value
    return json_in_text(value)


class HermesToolParser:
    def extract_streaming(self, delta):
        self.text = self.text + delta
        news = {}
        while self.text:
            if self.reader is not None:
                changes = self.reader.read(self.text)
                if changes:
                    news["tool_calls"] = news.get("tool_calls", []) + changes
                content = self._leave_call()
            else:
                place = self.text.find(START)
                if place >= 0:
                    content = self.text[:place]
                    self.reader = CallReader(self.calls, START, END)
                    self.text = self.text[place + len(START) :]
                else:
                    until = len(self.text) - partial_tag_overlap(self.text, START)
                    content, held = self.text[:until], self.text[until:]
                    self.text = held
                    if content:
                        news["content"] = news.get("content", "") + content
                    return news
            if content:
                news["content"] = news.get("content", "") + content
        return news
