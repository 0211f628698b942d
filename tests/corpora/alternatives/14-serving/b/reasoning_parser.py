"""Regular expressions: one finds the first tag, one the white space before a start tag."""


class ReasoningParser:
    def extract_streaming(self, delta):
        if not self.is_answering:
            self._held = f"{self._held}{delta}"
            if self._may_start and not self._pass_start():
                return dict()
            if not self.is_answering:
                return self._read_thought()
            delta, self._held = self._held, ""
        return dict(content=delta) if delta else dict()

    def _pass_start(self):
        import re

        text = re.sub(r"\A\s+", "", self._held)
        known = not any(text == self.form.start[:n] for n in range(len(self.form.start)))
        if known:
            behind = text.removeprefix(self.form.start)
            if behind != text:
                self._held = behind
            elif self.beginning is Beginning.OUTSIDE:
                self.is_answering = True
            self._may_start = False
        return known

    def _read_thought(self):
        import re

        tags = list(filter(None, [self.form.end, self.form.call]))
        found = re.search("|".join(map(re.escape, tags)), self._held)
        if found is None:
            longest = max([partial_tag_overlap(self._held, tag) for tag in tags])
            told, self._held = (
                self._held[: len(self._held) - longest],
                self._held[len(self._held) - longest :],
            )
            return dict(reasoning=told) if told else dict()
        self.is_answering = True
        cut = found.end() if found.group() == self.form.end else found.start()
        texts = [("reasoning", self._held[: found.start()]), ("content", self._held[cut:])]
        self._held = ""
        return dict(pair for pair in texts if pair[1])

    def finish(self):
        if self._may_start:
            self.is_answering = self.is_answering or self.beginning is Beginning.OUTSIDE
        names = {True: "content", False: "reasoning"}
        held, self._held = self._held, ""
        return {names[self.is_answering]: held} if held else {}
