"""The longest overlap first; one step of the loop in a function of its own."""


def partial_tag_overlap(text, tag):
    longest = min(len(text), len(tag) - 1)
    for length in range(longest, 0, -1):
        if text[-length:] == tag[:length]:
            return length
    return 0


def find_arguments(call):
    if not {"arguments", "parameters"} & call.members.keys():
        return "{}" if call.is_whole else ""
    text, is_whole = call.find("arguments", "parameters")
    first = text[:1]
    if first == '"':
        return json_in_text(text) if is_whole else ""
    return text if is_whole or first in ("{", "[") else ""


class HermesToolParser:
    def extract_streaming(self, delta):
        def step():
            if self.reader is not None:
                changes.extend(self.reader.read(self.text))
                return self._leave_call()
            before, tag, rest = self.text.partition(START)
            if tag:
                self.reader = CallReader(self.calls, START, END)
                self.text = rest
                return before
            certain = len(before) - partial_tag_overlap(before, START)
            self.text = before[certain:]
            return before[:certain]

        self.text += delta
        content, changes = "", []
        before = None
        while self.text and before != (self.text, self.reader):
            before = self.text, self.reader
            content += step()
        answer = {}
        if content:
            answer["content"] = content
        if changes:
            answer["tool_calls"] = changes
        return answer
