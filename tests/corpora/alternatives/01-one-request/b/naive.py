"""Generators: one produces tokens for ever, and a slice takes as many as are wanted."""


def greedy_without_cache(model, prompt_token_ids, max_tokens):
    from itertools import islice

    def tokens():
        sequence = tuple(prompt_token_ids)
        while True:
            cache = ContiguousKVCache(model, len(sequence) + 1)
            best = int(torch.argmax(next_token_logits(model, cache, sequence, start=0), dim=-1))
            yield best
            sequence = (*sequence, best)

    return list(islice(tokens(), max_tokens))


def greedy_with_cache(model, prompt_token_ids, max_tokens):
    from itertools import islice

    def tokens(cache):
        chunk, computed = tuple(prompt_token_ids), 0
        while True:
            logits = next_token_logits(model, cache, chunk, start=computed)
            computed, chunk = computed + len(chunk), (int(torch.argmax(logits)),)
            yield chunk[0]

    cache = ContiguousKVCache(model, len(prompt_token_ids) + max_tokens - 1)
    return list(islice(tokens(cache), max_tokens))
