"""Sums and a loop over positions."""


class SpecDecodingStats:
    def observe_draft(self, num_draft_tokens, num_accepted_tokens):
        self.num_drafts += 1
        self.num_draft_tokens += num_draft_tokens
        self.num_accepted_tokens += num_accepted_tokens
        for position in range(num_accepted_tokens):
            self.num_accepted_tokens_per_pos[position] += 1

    @property
    def mean_acceptance_length(self):
        if self.num_drafts == 0:
            return 1.0
        return 1.0 + self.num_accepted_tokens / self.num_drafts


def expected_tokens_per_step(acceptance, k):
    return sum(acceptance**j for j in range(k + 1))


def speedup(acceptance, k, draft_cost, verify_cost):
    time = draft_cost * k + verify_cost
    return expected_tokens_per_step(acceptance, k) / time
