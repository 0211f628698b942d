"""Books are updated in passes; times are sums of parts; the best is kept while looking."""


class SecondUse:
    def worth_keeping(self, keys):
        found = []
        for key in keys:
            if key in self.uses:
                self.uses.move_to_end(key)
                self.uses[key] += 1
            else:
                self.uses[key] = 1
                while len(self.uses) > self.capacity:
                    del self.uses[next(iter(self.uses))]
            if not self.uses[key] < self.threshold:
                found.append(key)
        return found


def tokens_to_load(prices, prompt_len, cached_tokens, stored_tokens):
    if stored_tokens <= cached_tokens:
        return 0
    count = stored_tokens - cached_tokens
    saved = prices.compute(count, prompt_len) - prices.prompt
    if saved > prices.carry(count):
        return count
    return 0


def first_token_seconds(prices, job, prefill, decode):
    length = job.prompt_len
    if prefill is None:
        return decode.queued_seconds + prices.compute(length - decode.cached_tokens, length)
    ready = prefill.queued_seconds + prices.compute(length - prefill.cached_tokens, length)
    return ready + prices.carry(length - decode.cached_tokens)


class EarliestFirstToken:
    def place(self, job, prefill, decode):
        best = None
        someone_has_room = any(view.free_tokens >= job.prompt_len for view in decode)
        for d, view in enumerate(decode):
            if someone_has_room and view.free_tokens < job.prompt_len:
                continue
            for p in range(-1, len(prefill)):
                first = prefill[p] if p >= 0 else None
                seconds = first_token_seconds(self.prices, job, first, view)
                if best is None or (seconds, view.running) < best[0]:
                    best = (seconds, view.running), Placement(p if p >= 0 else None, d)
        return best[1]
