"""Ends kept as numbers, one length after the other."""


def find_longest_matched_ngram_and_propose_tokens(
    origin_tokens, min_ngram, max_ngram, max_model_len, k
):
    tokens = np.asarray(origin_tokens, dtype=np.int64)
    length = len(tokens)
    k = min(k, max_model_len - length)
    nothing = np.empty(0, dtype=np.int64)
    if k <= 0 or length == 0:
        return nothing
    ends = np.flatnonzero(tokens[:-1] == tokens[-1]) + 1  # one past the last token of each match
    best = nothing
    for n in range(1, min(max_ngram, length) + 1):
        if n > 1:
            ends = ends[ends >= n]
            ends = ends[tokens[ends - n] == tokens[length - n]]
        if len(ends) == 0:
            break
        if n >= min_ngram:
            best = ends
    if len(best) == 0:
        return nothing
    first = best[0]
    return tokens[first : first + k]


class NgramProposer:
    def propose(self, step):
        proposals = {}
        for row, num_sampled in zip(step.rows.tolist(), step.num_sampled.tolist(), strict=True):
            if num_sampled == 0:
                continue
            length = int(step.batch.num_tokens[row])
            drafts = find_longest_matched_ngram_and_propose_tokens(
                step.batch.token_ids[row, :length],
                self.min_ngram,
                self.max_ngram,
                self.max_model_len,
                self.k,
            )
            if len(drafts) > 0:
                proposals[step.request_id(row)] = drafts.tolist()
        return proposals
