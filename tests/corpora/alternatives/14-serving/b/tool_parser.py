"""The overlap by trying all beginnings of the tag at once; the arguments by cases."""


def partial_tag_overlap(text, tag):
    beginnings = [tag[:length] for length in range(1, len(tag))]
    return max((len(start) for start in beginnings if text.endswith(start)), default=0)


def find_arguments(call):
    match call.find("parameters", "arguments"):
        case None if call.is_whole:
            return "{}"
        case (text, True) if text.startswith('"'):
            return json_in_text(text)
        case (text, is_whole) if is_whole or text[:1] in ("{", "["):
            return text
    return ""


class HermesToolParser:
    def extract_streaming(self, delta):
        self.text += delta
        contents, calls = [], []
        is_over = False
        while self.text and not is_over:
            if self.reader:
                calls.extend(self.reader.read(self.text))
                contents.append(self._leave_call())
                continue
            pieces = self.text.split(START, 1)
            is_over = len(pieces) == 1
            if is_over:
                held = partial_tag_overlap(pieces[0], START)
                contents.append(pieces[0][: len(pieces[0]) - held])
                self.text = pieces[0][len(pieces[0]) - held :]
            else:
                contents.append(pieces[0])
                self.reader, self.text = CallReader(self.calls, START, END), pieces[1]
        news = {"content": "".join(contents), "tool_calls": calls}
        return {key: value for key, value in news.items() if value}
