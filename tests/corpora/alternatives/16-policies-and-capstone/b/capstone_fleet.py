"""Two questions, one after the other: the quietest decode machine; then who computes for it."""


class CapstoneFleet:
    def place(self, job, prefill, decode):
        length, prices = job.prompt_len, self.prices

        def load(d):
            view = decode[d]
            rows = view.running * prices.row + view.held_tokens * prices.context
            return view.free_tokens < length, rows + 0.2 * view.queued_seconds

        quiet = min(range(len(decode)), key=load)
        here = decode[quiet]
        choices = {p: first_token_seconds(prices, job, v, here) for p, v in enumerate(prefill)}
        best = min(choices, key=choices.get, default=None)
        if best is None or choices[best] < 0.6 * job.ttft:
            return Placement(best, quiet)
        alone = first_token_seconds(prices, job, None, here)
        return Placement(None if alone < choices[best] else best, quiet)
