"""Partition at each tag, and keep the shortest head."""


class ReasoningParser:
    def extract_streaming(self, delta):
        if self.is_answering:
            news = {"content": delta}
        else:
            self._held += delta
            unknown = self._may_start and not self._pass_start()
            if unknown:
                news = {}
            elif self.is_answering:
                news = {"content": self._held}
                self._held = ""
            else:
                news = self._read_thought()
        return {name: text for name, text in news.items() if text != ""}

    def _pass_start(self):
        space = len(self._held) - len(self._held.lstrip())
        beginning = self._held[space : space + len(self.form.start)]
        if beginning == self.form.start:
            self._held = self._held[space + len(beginning) :]
        elif self.form.start.startswith(beginning) and space + len(beginning) == len(self._held):
            return False
        else:
            self.is_answering = self.beginning.name == "OUTSIDE"
        self._may_start = False
        return True

    def _read_thought(self):
        thought, tag, answer = self._held.partition(self.form.end)
        if self.form.call:
            head, call, rest = self._held.partition(self.form.call)
            if call and len(head) < len(thought):
                thought, tag, answer = head, call, call + rest
        if tag:
            self._held, self.is_answering = "", True
            return {
                name: text for name, text in (("reasoning", thought), ("content", answer)) if text
            }
        waits = partial_tag_overlap(self._held, self.form.end)
        if self.form.call:
            waits = max(waits, partial_tag_overlap(self._held, self.form.call))
        cut = len(self._held) - waits
        self._held = self._held[cut:]
        return {"reasoning": thought[:cut]} if cut else {}

    def finish(self):
        if self._may_start and self.beginning.name == "OUTSIDE":
            self.is_answering = True
        news = {}
        if self._held:
            news["content" if self.is_answering else "reasoning"] = self._held
        self._held = ""
        return news
