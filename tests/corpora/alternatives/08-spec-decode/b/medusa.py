"""All heads first, then rows."""


class MedusaProposer:
    def propose(self, step):
        rows = [place for place in range(len(step.rows)) if step.num_sampled[place] > 0]
        if not rows:
            return {}
        ends = step.starts + step.num_valid
        hidden = torch.stack([step.hidden[int(ends[place]) - 1] for place in rows])
        columns = []
        for index in range(self.k):
            logits = self.target.compute_logits(self.heads(hidden, index))
            columns.append(logits.argmax(dim=-1).tolist())
        names = [step.request_id(step.rows[place]) for place in rows]
        return {name: [column[i] for column in columns] for i, name in enumerate(names)}
