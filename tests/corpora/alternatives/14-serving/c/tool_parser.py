"""The longest overlap first; the arguments by a pattern and a decoder."""


def partial_tag_overlap(text, tag):
    longest = min(len(text), len(tag) - 1)
    for length in range(longest, 0, -1):
        if text[-length:] == tag[:length]:
            return length
    return 0


def find_arguments(call, is_complete):
    match = re.search(r'"arguments"\s*:\s*', call)
    if match is None:
        return "{}" if is_complete else ""
    written = call[match.end() :]
    try:
        _, end = json.JSONDecoder().raw_decode(written)
        return written[:end]
    except ValueError:
        pass
    written = written.rstrip()
    if is_complete and written.endswith("}"):
        written = written[:-1].rstrip()
    return written


class HermesToolParser:
    def extract_streaming(self, delta):
        self.text += delta
        content, *calls = self.text.split(START)
        certain = len(content)
        if not calls:
            certain -= partial_tag_overlap(content, START)
        answer: dict[str, Any] = {}
        if certain > self.num_content_sent:
            answer["content"] = content[self.num_content_sent : certain]
            self.num_content_sent = certain
        news = []
        for index, call in enumerate(calls):
            news.extend(self._call_news(index, call))
        if news:
            answer["tool_calls"] = news
        return answer
