"""One buffer for all tokens, filled from the left; the first loop is a recursion."""


def greedy_without_cache(model, prompt_token_ids, max_tokens):
    if max_tokens == 0:
        return []
    sequence = list(prompt_token_ids)
    cache = ContiguousKVCache(model, max_len=len(sequence))
    token = next_token_logits(model, cache, sequence, 0).topk(1).indices[0].item()
    return [token] + greedy_without_cache(model, [*sequence, token], max_tokens - 1)


def greedy_with_cache(model, prompt_token_ids, max_tokens):
    buffer = [*prompt_token_ids, *[-1] * max_tokens]
    cache = ContiguousKVCache(model, max_len=len(buffer) - 1)
    computed, known = 0, len(prompt_token_ids)
    while known < len(buffer):
        logits = next_token_logits(model, cache, buffer[computed:known], computed)
        computed = known
        buffer[known] = logits.topk(1).indices[0].item()
        known += 1
    return buffer[len(prompt_token_ids) :]
