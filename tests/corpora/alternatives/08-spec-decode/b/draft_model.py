"""Limits as arrays; drafts in a table first."""


class DraftModelProposer:
    def first_pass_counts(self, step):
        ends = step.num_computed + step.num_valid + np.where(step.num_sampled > 0, 1, 0)
        slots = step.batch.num_blocks[step.rows] * step.batch.block_size
        last = np.minimum(np.minimum(ends, slots), self.max_model_len)
        return np.maximum(last - step.num_computed, 0)

    def num_drafts(self, step):
        num_tokens = step.batch.num_tokens[step.rows]
        slots = step.batch.num_blocks[step.rows] * step.batch.block_size
        limits = np.full(len(num_tokens), self.k)
        for room in (slots + 1 - num_tokens, self.max_model_len - 1 - num_tokens):
            limits = np.minimum(limits, room)
        return np.maximum(limits, 0) * (step.num_sampled > 0)

    def propose(self, step):
        self._forget(step)
        counts, limits = self.first_pass_counts(step), self.num_drafts(step)
        fed = np.flatnonzero(counts)
        logits = self._run(step.batch, step.rows[fed], step.num_computed[fed], counts[fed])
        going = [i for i, place in enumerate(fed) if limits[place]]
        logits, places = logits[going], fed[going]
        said = {}
        for turn in range(self.k):
            tokens = self._choose(step, step.rows[places], logits, turn)
            for place, token in zip(places.tolist(), tokens.tolist(), strict=True):
                said.setdefault(place, []).append(token)
            keep = np.flatnonzero(limits[places] > turn + 1)
            places, tokens = places[keep], tokens[keep]
            rows = step.rows[places]
            starts = step.batch.num_tokens[rows] + turn
            ones = np.ones(len(rows), dtype=starts.dtype)
            logits = self._run(step.batch, rows, starts, ones, tokens)
        return {step.request_id(step.rows[place]): drafts for place, drafts in said.items()}
