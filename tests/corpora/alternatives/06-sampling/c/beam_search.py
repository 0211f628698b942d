"""One pass, with a list of pairs that is sorted by hand."""


class BeamSearch:
    def score(self, beam):
        ends = any(beam.tokens[-1] == end for end in self.eos_token_ids)
        length = sum(1 for _ in beam.tokens) - int(ends)
        divisor = length**self.params.length_penalty
        return beam.cum_logprob / divisor

    def best(self, beams):
        ranked = sorted((-self.score(beam), place) for place, beam in enumerate(beams))
        return [beams[place] for _, place in ranked[: self.params.beam_width]]

    def grow(self, proposals):
        pool, ended = [], []
        for beam, proposed in zip(self.beams, proposals, strict=True):
            for token_id, _ in proposed.items():
                is_end = not self.params.ignore_eos and token_id in self.eos_token_ids
                (ended if is_end else pool).append(beam.followed_by(token_id, proposed))
        for text in ended:
            text.finish_reason, text.stop_reason = "stop", text.tokens[-1]
        self.completed.extend(ended)
        self.beams = self.best(pool)

    def finished(self):
        everything = list(self.completed)
        everything.extend(self.beams)
        winners = self.best(everything)
        for winner in winners:
            winner.finish_reason = {None: "length"}.get(winner.finish_reason, winner.finish_reason)
        return winners
