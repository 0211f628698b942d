"""Recursion, a table of all seconds, and times that are built from the end."""


class SecondUse:
    def worth_keeping(self, keys):
        if not keys:
            return []
        first, *rest = keys
        seen = self.uses.get(first, 0)
        if seen:
            del self.uses[first]
        self.uses[first] = seen + 1
        if len(self.uses) == self.capacity + 1:
            oldest = next(iter(self.uses))
            del self.uses[oldest]
        mine = [first] if seen + 1 >= self.threshold else []
        return mine + self.worth_keeping(rest)


def tokens_to_load(prices, prompt_len, cached_tokens, stored_tokens):
    def seconds(loaded):
        left = stored_tokens - cached_tokens - loaded
        computing = left * (prices.token + prompt_len * prices.pair)
        return computing + (prices.carry(loaded) if loaded else 0.0)

    if cached_tokens >= stored_tokens:
        return 0
    return min((0, stored_tokens - cached_tokens), key=seconds)


def first_token_seconds(prices, job, prefill, decode):
    trip = 0.0
    if prefill is not None:
        trip = prices.carry(job.prompt_len - decode.cached_tokens)
        decode = prefill
    new = job.prompt_len - decode.cached_tokens
    return trip + prices.compute(new, job.prompt_len) + decode.queued_seconds


class EarliestFirstToken:
    def place(self, job, prefill, decode):
        fitting = {d: v for d, v in enumerate(decode) if not v.free_tokens < job.prompt_len}
        fitting = fitting or dict(enumerate(decode))
        firsts = {None: None, **dict(enumerate(prefill))}
        table = {
            Placement(p, d): (first_token_seconds(self.prices, job, first, second), second.running)
            for d, second in fitting.items()
            for p, first in firsts.items()
        }
        least = min(table.values())
        return next(choice for choice, value in table.items() if value == least)
