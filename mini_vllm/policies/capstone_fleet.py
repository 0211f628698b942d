"""A fleet policy of your own: more requests in time than by any simple one.

A policy that looks only at the first token sends prompts to machines that decode, and there every
token of every request comes later. Two limits were promised, so two times must be weighed::

    choice              first token      pace of requests there
    remote, quiet d     later            as before
    local,  quiet d     soon             a stall for few
    local,  busy d      soon             a stall for many
"""

from __future__ import annotations

from collections.abc import Sequence

from mini_vllm.policies.fleet import (
    FleetPolicy,
    Job,
    Placement,
    View,
    first_token_seconds,
)


class CapstoneFleet(FleetPolicy):
    """Weighs both promises."""

    def place(self, job: Job, prefill: Sequence[View], decode: Sequence[View]) -> Placement:
        """Choose the machines for a request: see :meth:`FleetPolicy.place`.

        Every request must be placed; none can be sent away. What counts in the end is how many
        requests kept both of their promises.
        """
        roomy = [d for d, view in enumerate(decode) if view.free_tokens >= job.prompt_len]
        best, least = Placement(None, 0), float("inf")
        for d in roomy or range(len(decode)):
            for p in [None, *range(len(prefill))]:
                cost = self._cost(job, None if p is None else prefill[p], decode[d])
                if cost < least:
                    best, least = Placement(p, d), cost
        return best

    def _cost(self, job: Job, prefill: View | None, decode: View) -> float:
        """How near a placement comes to breaking promises: of this request, and of those that run
        there."""
        prices = self.prices
        first = first_token_seconds(prices, job, prefill, decode) / job.ttft
        context = decode.held_tokens + job.prompt_len
        pace = prices.step + (decode.running + 1) * prices.row + context * prices.context
        pace /= job.tpot
        cost = first * first + pace * pace  # squares: nearly late is much worse than half as late
        if prefill is None:  # all requests that run there wait for this prompt
            stall = prices.compute(job.prompt_len - decode.cached_tokens, job.prompt_len)
            cost += 0.03 * decode.running * stall / job.tpot
        return cost
