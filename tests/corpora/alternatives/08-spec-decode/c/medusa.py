"""Columns of guesses, turned into rows."""


class MedusaProposer:
    def propose(self, step):
        got = step.num_sampled > 0
        if not got.any():
            return {}
        places = (step.starts + step.num_valid - 1)[got]
        hidden = step.hidden[torch.from_numpy(places).to(step.hidden.device)]
        columns = []
        for index in range(self.k):
            logits = self.target.compute_logits(self.heads(hidden, index))
            columns.append(greedy_sample(logits).tolist())
        rows = step.rows[got]
        return {
            step.request_id(row): list(drafts)
            for row, drafts in zip(rows, zip(*columns, strict=True), strict=True)
        }
