"""One request after another where counts are concerned; a list of who still drafts."""


class DraftModelProposer:
    def first_pass_counts(self, step):
        counts = []
        for place, row in enumerate(step.rows):
            wanted = int(step.num_valid[place]) + (1 if step.num_sampled[place] else 0)
            slots = int(step.batch.num_blocks[row]) * step.batch.block_size
            room = min(slots, self.max_model_len) - int(step.num_computed[place])
            counts.append(max(0, min(wanted, room)))
        return np.array(counts, dtype=np.int32)

    def num_drafts(self, step):
        limits = []
        for place, row in enumerate(step.rows):
            length = int(step.batch.num_tokens[row])
            slots = int(step.batch.num_blocks[row]) * step.batch.block_size
            room = min(self.k, slots - length + 1, self.max_model_len - 1 - length)
            limits.append(max(room, 0) if step.num_sampled[place] else 0)
        return np.array(limits, dtype=np.int32)

    def propose(self, step):
        self._forget(step)
        counts = self.first_pass_counts(step)
        who = np.flatnonzero(counts)
        logits = self._run(step.batch, step.rows[who], step.num_computed[who], counts[who])
        limits = dict(zip(step.rows.tolist(), self.num_drafts(step).tolist(), strict=True))
        places = [i for i, row in enumerate(step.rows[who].tolist()) if limits[row]]
        rows, logits = [int(step.rows[who][i]) for i in places], logits[places]
        drafts = {step.request_id(row): [] for row in rows}
        position = 0
        while rows:
            tokens = self._choose(step, np.array(rows), logits, position)
            for row, token in zip(rows, tokens.tolist(), strict=True):
                drafts[step.request_id(row)].append(token)
            position += 1
            on = [i for i, row in enumerate(rows) if limits[row] > position]
            rows, tokens = [rows[i] for i in on], tokens[on]
            if rows:
                starts = step.batch.num_tokens[rows] + np.int32(position - 1)
                ones = np.ones(len(rows), dtype=np.int32)
                logits = self._run(step.batch, np.array(rows), starts, ones, tokens)
        return drafts
