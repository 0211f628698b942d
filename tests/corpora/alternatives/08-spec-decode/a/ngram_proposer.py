"""Knuth, Morris and Pratt on the text turned round, as upstream has it; in plain Python lists."""


def find_longest_matched_ngram_and_propose_tokens(
    origin_tokens, min_ngram, max_ngram, max_model_len, k
):
    tokens = np.asarray(origin_tokens)
    total = len(tokens)
    k = min(k, max_model_len - total)
    if total < min_ngram or k <= 0:
        return tokens[:0]
    turned = tokens[::-1].tolist()
    lps = [0] * max_ngram
    longest, position, previous, i = 0, 0, 0, 1
    while i < total:
        if turned[previous] == turned[i]:
            previous += 1
            if previous >= longest:
                longest, position = previous, i
            if i < max_ngram:
                lps[i] = previous
            if previous == max_ngram:
                previous = lps[max_ngram - 1]
            i += 1
        elif previous:
            previous = lps[previous - 1]
        else:
            i += 1
    if longest < min_ngram:
        return tokens[:0]
    start = total - 1 - position + longest
    return tokens[start : start + k]


class NgramProposer:
    def propose(self, step):
        found = {}
        for place, row in enumerate(step.rows.tolist()):
            if step.num_sampled[place]:
                length = int(step.batch.num_tokens[row])
                text = step.batch.token_ids[row][:length]
                guess = find_longest_matched_ngram_and_propose_tokens(
                    text, self.min_ngram, self.max_ngram, self.max_model_len, self.k
                )
                if guess.size:
                    found[step.request_id(row)] = [int(token) for token in guess]
        return found
