"""Three limits side by side; requests narrowed by masks."""


class DraftModelProposer:
    def first_pass_counts(self, step):
        batch, rows = step.batch, step.rows
        wanted = step.num_valid + (step.num_sampled > 0)
        slots = batch.num_blocks[rows] * batch.block_size
        limit = np.minimum(slots, self.max_model_len) - step.num_computed
        return np.maximum(np.minimum(wanted, limit), 0).astype(np.int32)

    def num_drafts(self, step):
        batch, rows = step.batch, step.rows
        num_tokens = batch.num_tokens[rows]
        slots = batch.num_blocks[rows] * batch.block_size
        by_slots = slots - num_tokens + 1
        by_length = self.max_model_len - 1 - num_tokens
        drafts = np.maximum(np.minimum(np.minimum(by_slots, by_length), self.k), 0)
        return np.where(step.num_sampled > 0, drafts, 0).astype(np.int32)

    def propose(self, step):
        self._forget(step)
        counts = self.first_pass_counts(step)
        limits = self.num_drafts(step)
        reads = counts > 0
        logits = self._run(step.batch, step.rows[reads], step.num_computed[reads], counts[reads])
        may_draft = limits[reads] > 0
        rows, limits = step.rows[reads][may_draft], limits[reads][may_draft]
        logits = logits[torch.from_numpy(may_draft).to(self.device)] if len(rows) else logits[:0]
        proposals = {step.request_id(row): [] for row in rows}
        for position in range(self.k):
            if len(rows) == 0:
                break
            tokens = self._choose(step, rows, logits, position)
            for row, token in zip(rows, tokens.tolist(), strict=True):
                proposals[step.request_id(row)].append(token)
            going = limits > position + 1
            rows, limits = rows[going], limits[going]
            tokens = tokens[torch.from_numpy(going).to(self.device)]
            starts = (step.batch.num_tokens[rows] + position).astype(np.int32)
            logits = self._run(step.batch, rows, starts, np.ones(len(rows), dtype=np.int32), tokens)
        return proposals
