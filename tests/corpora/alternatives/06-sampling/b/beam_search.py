"""Comprehensions: first all children, then who has ended."""


class BeamSearch:
    def score(self, beam):
        *body, last = beam.tokens
        counted = body if last in set(self.eos_token_ids) else beam.tokens
        return beam.cum_logprob / pow(len(counted), self.params.length_penalty)

    def best(self, beams):
        import heapq

        return heapq.nlargest(self.params.beam_width, beams, key=self.score)

    def grow(self, proposals):
        pairs = list(zip(self.beams, proposals, strict=True))
        children = [beam.followed_by(token, each) for beam, each in pairs for token in each]
        ends = set() if self.params.ignore_eos else set(self.eos_token_ids)
        for child in (one for one in children if one.tokens[-1] in ends):
            child.finish_reason, child.stop_reason = "stop", child.tokens[-1]
            self.completed.append(child)
        self.beams = self.best([one for one in children if one.tokens[-1] not in ends])

    def finished(self):
        for beam in self.beams:
            beam.finish_reason = "length"
        return self.best([*self.completed, *self.beams])
