"""Step by step, with flags and while loops."""


class BeamSearch:
    def score(self, beam):
        length = len(beam.tokens)
        for end in self.eos_token_ids:
            if beam.tokens[length - 1 :] == [end]:
                length -= 1
                break
        return beam.cum_logprob * length**-self.params.length_penalty

    def best(self, beams):
        left, chosen = list(beams), []
        while left and len(chosen) < self.params.beam_width:
            champion = left[0]
            for one in left[1:]:
                if self.score(one) > self.score(champion):
                    champion = one
            left = [one for one in left if one is not champion]
            chosen.append(champion)
        return chosen

    def grow(self, proposals):
        if len(proposals) != len(self.beams):
            raise ValueError(f"{len(proposals)} proposals for {len(self.beams)} beams")
        ends = () if self.params.ignore_eos else self.eos_token_ids
        going_on = []
        for index in range(len(self.beams)):
            for token_id in proposals[index]:
                child = self.beams[index].followed_by(token_id, proposals[index])
                has_ended = token_id in ends
                if has_ended:
                    child.finish_reason = "stop"
                    child.stop_reason = token_id
                    self.completed.append(child)
                if not has_ended:
                    going_on.append(child)
        self.beams = self.best(going_on)

    def finished(self):
        found = self.best(self.completed + self.beams)
        for one in found:
            if one.finish_reason is None:
                one.finish_reason = "length"
        return found
