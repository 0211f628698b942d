"""Everything in machine seconds: one's own wait, and what everybody else waits for it."""


class CapstoneFleet:
    def place(self, job, prefill, decode):
        prices = self.prices
        pairs = [(p, d) for p in range(-1, len(prefill)) for d in range(len(decode))]
        return min(
            (Placement(None if p < 0 else p, d) for p, d in pairs),
            key=lambda choice: seconds(prices, job, prefill, decode[choice.decode], choice.prefill),
        )


def seconds(prices, job, prefill, view, p):
    late = 1.0
    wait = first_token_seconds(prices, job, None if p is None else prefill[p], view)
    if wait > job.ttft / 2:
        late += 4 * (wait / job.ttft - 0.5)
    new = job.prompt_len - view.cached_tokens
    others = view.running * prices.compute(new, job.prompt_len) if p is None else 0.0
    tokens = 30 * (view.running * prices.row + view.held_tokens * prices.context)
    return wait * late + 0.3 * others + tokens + 100.0 * (view.free_tokens < job.prompt_len)
