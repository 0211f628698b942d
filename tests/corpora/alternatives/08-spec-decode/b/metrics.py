"""Horner's way."""


class SpecDecodingStats:
    def observe_draft(self, num_draft_tokens, num_accepted_tokens):
        places = self.num_accepted_tokens_per_pos
        places[:num_accepted_tokens] = [count + 1 for count in places[:num_accepted_tokens]]
        self.num_accepted_tokens += num_accepted_tokens
        self.num_draft_tokens += num_draft_tokens
        self.num_drafts += 1

    @property
    def mean_acceptance_length(self):
        if not self.num_drafts:
            return 1.0
        return (self.num_drafts + self.num_accepted_tokens) / self.num_drafts


def expected_tokens_per_step(acceptance, k):
    total = 1.0
    for _ in range(k):
        total = 1.0 + acceptance * total
    return total


def speedup(acceptance, k, draft_cost, verify_cost):
    step = verify_cost + k * draft_cost
    return expected_tokens_per_step(acceptance, k) / step
