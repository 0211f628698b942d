"""A new book for each prompt; everything in terms of lists that are sorted or counted."""


class SecondUse:
    def worth_keeping(self, keys):
        def use(key):
            uses = 1 + self.uses.get(key, 0)
            self.uses.update({key: uses})
            self.uses.move_to_end(key)
            for _ in range(len(self.uses) - self.capacity):
                self.uses.popitem(last=False)
            return uses

        answers = [use(key) for key in keys]
        return [key for key, uses in zip(keys, answers, strict=True) if self.threshold <= uses]


def tokens_to_load(prices, prompt_len, cached_tokens, stored_tokens):
    more = max(stored_tokens - cached_tokens, 0)
    per_token = prices.pair * prompt_len + prices.token
    return more * (prices.trip + more * prices.carried < per_token * more)


def first_token_seconds(prices, job, prefill, decode):
    waits = (prefill or decode).queued_seconds
    new = job.prompt_len - (prefill or decode).cached_tokens
    work = prices.prompt + new * (prices.token + job.prompt_len * prices.pair)
    missing = job.prompt_len - decode.cached_tokens
    return waits + work + (prices.trip + missing * prices.carried if prefill else 0)


class EarliestFirstToken:
    def place(self, job, prefill, decode):
        rated = []
        for d, second in enumerate(decode):
            no_room = second.free_tokens < job.prompt_len
            for p, first in enumerate([None, *prefill]):
                seconds = first_token_seconds(self.prices, job, first, second)
                rated.append((no_room, seconds, second.running, d, p))
        _, _, _, d, p = sorted(rated)[0]
        return Placement(p - 1 if p else None, d)
