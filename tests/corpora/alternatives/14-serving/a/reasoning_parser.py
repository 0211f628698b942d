"""Letter by letter: each one is told as soon as it is certain."""


class ReasoningParser:
    def extract_streaming(self, delta):
        thought, answer = "", ""
        for index, letter in enumerate(delta):
            if self.is_answering:
                answer += delta[index:]
                break
            self._held += letter
            if self._may_start and not self._pass_start():
                continue
            if self.is_answering:
                answer += self._held
                self._held = ""
                continue
            told = self._read_thought()
            thought += told.get("reasoning", "")
            answer += told.get("content", "")
        news = {}
        if thought:
            news["reasoning"] = thought
        if answer:
            news["content"] = answer
        return news

    def _pass_start(self):
        tag = self.form.start
        text = self._held
        while text and text[0].isspace():
            text = text[1:]
        if len(text) < len(tag) and tag[: len(text)] == text:
            return False
        self._may_start = False
        if text[: len(tag)] == tag:
            self._held = text[len(tag) :]
            return True
        if self.beginning is Beginning.OUTSIDE:
            self.is_answering = True
        return True

    def _read_thought(self):
        tags = [self.form.end]
        if self.form.call:
            tags.append(self.form.call)
        for place in range(len(self._held)):
            for tag in tags:
                if self._held[place : place + len(tag)] != tag:
                    continue
                thought, rest = self._held[:place], self._held[place:]
                if tag == self.form.end:
                    rest = rest[len(tag) :]
                self._held = ""
                self.is_answering = True
                news = {}
                if thought:
                    news["reasoning"] = thought
                if rest:
                    news["content"] = rest
                return news
        waiting = 0
        for tag in tags:
            waiting = max(waiting, partial_tag_overlap(self._held, tag))
        told = self._held[: len(self._held) - waiting]
        self._held = self._held[len(told) :]
        return {"reasoning": told} if told else {}

    def finish(self):
        left = self._held
        self._held = ""
        if not left:
            if self._may_start and self.beginning is Beginning.OUTSIDE:
                self.is_answering = True
            return {}
        if self._may_start and self.beginning is Beginning.OUTSIDE:
            self.is_answering = True
        name = "content" if self.is_answering else "reasoning"
        return {name: left}
