"""Budgets: among those that keep both promises the quietest; if none does, the earliest."""


class CapstoneFleet:
    def place(self, job, prefill, decode):
        prices, length = self.prices, job.prompt_len
        rated = []
        for d, view in enumerate(decode):
            pace = prices.step + (view.running + 1) * prices.row
            pace += (view.held_tokens + length) * prices.context
            room = view.free_tokens >= length
            for p in (None, *range(len(prefill))):
                first = first_token_seconds(prices, job, None if p is None else prefill[p], view)
                stall = 0.0
                if p is None:
                    stall = view.running * prices.compute(length - view.cached_tokens, length)
                late = (first > 0.7 * job.ttft) + (pace > 0.9 * job.tpot)
                burden = pace / job.tpot + 2 * first / job.ttft + 0.05 * stall / job.tpot
                rated.append((not room, late, burden, d, p))
        _, _, _, d, p = min(rated, key=lambda row: row[:4])
        return Placement(p, d)
