"""One request after another."""


class MedusaProposer:
    def propose(self, step):
        drafts = {}
        for place in step.num_sampled.nonzero()[0].tolist():
            last = int(step.starts[place]) + int(step.num_valid[place]) - 1
            hidden = step.hidden[last : last + 1]
            drafts[step.request_id(step.rows[place])] = [
                int(self.target.compute_logits(self.heads(hidden, j)).argmax())
                for j in range(self.k)
            ]
        return drafts
