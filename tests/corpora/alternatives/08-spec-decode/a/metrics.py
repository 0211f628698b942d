"""The closed form, with its exception."""


class SpecDecodingStats:
    def observe_draft(self, num_draft_tokens, num_accepted_tokens):
        self.num_drafts += 1
        self.num_draft_tokens += num_draft_tokens
        self.num_accepted_tokens += num_accepted_tokens
        self.num_accepted_tokens_per_pos = [
            count + (place < num_accepted_tokens)
            for place, count in enumerate(self.num_accepted_tokens_per_pos)
        ]

    @property
    def mean_acceptance_length(self):
        return 1.0 + self.num_accepted_tokens / max(self.num_drafts, 1)


def expected_tokens_per_step(acceptance, k):
    if acceptance == 1:
        return float(k + 1)
    return (1 - acceptance ** (k + 1)) / (1 - acceptance)


def speedup(acceptance, k, draft_cost, verify_cost):
    plain = expected_tokens_per_step(acceptance, k)
    return plain / (verify_cost + draft_cost * k)
