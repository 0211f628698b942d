"""Whole windows of each length, the longest first."""


def find_longest_matched_ngram_and_propose_tokens(
    origin_tokens, min_ngram, max_ngram, max_model_len, k
):
    tokens = np.asarray(origin_tokens)
    k = min(k, max_model_len - len(tokens))
    for n in range(min(max_ngram, len(tokens) - 1), min_ngram - 1, -1):
        windows = np.lib.stride_tricks.sliding_window_view(tokens, n)[:-1]
        found = np.flatnonzero((windows == tokens[-n:]).all(axis=1))
        if len(found) and k > 0:
            return tokens[found[0] + n :][:k]
    return tokens[:0]


class NgramProposer:
    def propose(self, step):
        args = (self.min_ngram, self.max_ngram, self.max_model_len, self.k)
        texts = {
            step.request_id(row): step.batch.token_ids[row, : step.batch.num_tokens[row]]
            for row, sampled in zip(step.rows, step.num_sampled, strict=True)
            if sampled
        }
        return {  # an empty list for who has no idea
            name: find_longest_matched_ngram_and_propose_tokens(text, *args).tolist()
            for name, text in texts.items()
        }
