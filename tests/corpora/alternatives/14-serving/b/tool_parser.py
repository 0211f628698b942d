"""The overlap by trying all beginnings of the tag at once."""


def partial_tag_overlap(text, tag):
    beginnings = [tag[:length] for length in range(1, len(tag))]
    return max((len(start) for start in beginnings if text.endswith(start)), default=0)


def find_arguments(call, is_complete):
    import re

    before = re.match(r'.*?"arguments"\s*:\s*', call, re.DOTALL)
    if before is None:
        return is_complete * "{}"
    value = call[before.end() :]
    try:
        return value[: json.JSONDecoder().raw_decode(value)[1]]
    except ValueError:
        certain = value.rstrip()
        return certain.removesuffix("}").rstrip() if is_complete else certain


class HermesToolParser:
    def extract_streaming(self, delta):
        self.text += delta
        pieces = self.text.split(START)
        held = partial_tag_overlap(pieces[0], START) if len(pieces) == 1 else 0
        certain = pieces[0][: len(pieces[0]) - held]
        content, self.num_content_sent = (
            certain[self.num_content_sent :],
            max(self.num_content_sent, len(certain)),
        )
        calls = [one for i, call in enumerate(pieces[1:]) for one in self._call_news(i, call)]
        news = {"content": content, "tool_calls": calls}
        return {key: value for key, value in news.items() if value}
