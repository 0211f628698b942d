"""The output grows in a list of its own; the first call is told apart from the others."""


def greedy_without_cache(model, prompt_token_ids, max_tokens):
    output = []
    while len(output) < max_tokens:
        sequence = [*prompt_token_ids, *output]
        logits = next_token_logits(model, ContiguousKVCache(model, len(sequence)), sequence, 0)
        output.append(logits.max(dim=0).indices.item())
    return output


def greedy_with_cache(model, prompt_token_ids, max_tokens):
    length = len(prompt_token_ids)
    cache = ContiguousKVCache(model, length + max_tokens - 1)
    logits = next_token_logits(model, cache, list(prompt_token_ids), 0)
    output = [logits.max(dim=0).indices.item()]
    for position in range(length, length + max_tokens - 1):
        logits = next_token_logits(model, cache, output[-1:], position)
        output.append(logits.max(dim=0).indices.item())
    return output
