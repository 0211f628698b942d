"""Policies of a whole fleet: which machine computes a prompt, which one answers, what is kept.

A scheduler decides for one machine. A fleet has several machines of two kinds, and its router
decides for each request before any scheduler sees it::

    request ──► policy ──► prefill machine ──KV──► decode machine ──► tokens
                   └─────────── local: no trip ───────────▲
                              a shared tier keeps KV of prompts for all of them

The policy knows what a router can know: how much each machine has to do, and how much of this
prompt each has in its cache. It does not know how long an answer will be.

Source: vllm/v1/kv_offload/cpu/manager.py#L97-L111 (CPUOffloadingManager.lookup) @ v0.22.1
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class Prices:
    """What work costs on every machine of the fleet, in seconds.

    Attributes:
        prompt: a prompt, however short.
        token: each of its tokens that is computed.
        pair: each of these tokens, times the length of the prompt: attention.
        trip: a transfer, however little it carries.
        carried: each token whose KV is carried.
        step: a step that makes tokens, for however few.
        row: each request that makes a token in it.
        context: each token of its KV that the step reads.
    """

    prompt: float
    token: float
    pair: float
    trip: float
    carried: float
    step: float
    row: float
    context: float = 0.0

    def compute(self, num_tokens: int, prompt_len: int) -> float:
        """Seconds to compute the last ``num_tokens`` tokens of a prompt."""
        return self.prompt + num_tokens * (self.token + prompt_len * self.pair)

    def carry(self, num_tokens: int) -> float:
        """Seconds to carry the KV of so many tokens from one machine to another."""
        return self.trip + num_tokens * self.carried


class Job(NamedTuple):
    """A request, as far as the router knows it."""

    prompt_len: int
    ttft: float
    """Promised: seconds to the first token, at most."""
    tpot: float
    """Promised: seconds for each further token, at most, on average."""


class View(NamedTuple):
    """A machine, as the policy sees it when a request arrives."""

    cached_tokens: int
    """Of this prompt's beginning, in this machine's cache."""
    queued_seconds: float
    """Work on other prompts that must be done before this one's turn."""
    running: int
    """Requests that make tokens there, and those that are on their way to do so."""
    free_tokens: int
    """Room for KV that is not claimed."""
    held_tokens: int = 0
    """Of KV that its steps read, or will."""


class Placement(NamedTuple):
    """Which machines serve a request, as indices into the lists that the policy was given."""

    prefill: int | None
    """None: local. The decode machine computes the prompt itself."""
    decode: int


# ---------------------------------------------------------------------- the tier


class SecondUse:
    """Knows which blocks have been asked for before. Most prompts never come again, and keeping
    them would throw out those that do.

    Args:
        threshold: the use from which on a block is worth keeping.
        capacity: how many blocks are remembered; the one unused for longest is forgotten.
    """

    def __init__(self, threshold: int = 2, capacity: int = 64_000) -> None:
        self.threshold = threshold
        self.capacity = capacity
        self.uses: OrderedDict[int, int] = OrderedDict()
        """Uses by key, the one unused for longest first."""

    def worth_keeping(self, keys: Sequence[int]) -> list[int]:
        """Note one use of each block of a prompt, key by key.

        A key that is used becomes the youngest. If then more than ``capacity`` keys are remembered,
        the oldest is forgotten at once, before the next key is noted, and would begin again at 1.

        Returns:
            Those keys that have now been used ``threshold`` times or more, in their order.
        """
        # TODO 16.7
        raise NotImplementedError(
            "TODO 16.7: write SecondUse.worth_keeping in labs/16-policies-and-capstone/fleet.py"
            " (phase 16, 02-mini-build.md#task-7)"
        )


def tokens_to_load(prices: Prices, prompt_len: int, cached_tokens: int, stored_tokens: int) -> int:
    """How many tokens of a prompt to load from the tier instead of computing them: all that it has
    beyond the cache, or none.

    Args:
        cached_tokens: of the prompt's beginning, in the machine's own cache.
        stored_tokens: of the prompt's beginning, in the tier.

    Returns:
        ``stored_tokens - cached_tokens`` if carrying them takes less time than they add to the
        computation; else 0. ``prices.prompt`` is paid either way.
    """
    # TODO 16.7
    raise NotImplementedError(
        "TODO 16.7: write tokens_to_load in labs/16-policies-and-capstone/fleet.py"
        " (phase 16, 02-mini-build.md#task-7)"
    )


# ---------------------------------------------------------------------- where to


def first_token_seconds(prices: Prices, job: Job, prefill: View | None, decode: View) -> float:
    """How long the first token takes if these two serve the request.

    The machine that computes (the decode machine, if ``prefill`` is None) first does what is
    queued, then computes the tokens that are not in its cache. If that was a prefill machine, the
    KV travels: all of the prompt but what the decode machine has in its own cache.
    """
    # TODO 16.8
    raise NotImplementedError(
        "TODO 16.8: write first_token_seconds in labs/16-policies-and-capstone/fleet.py"
        " (phase 16, 02-mini-build.md#task-8)"
    )


class FleetPolicy:
    """What a fleet asks. A policy of your own is a subclass; ``place`` is what it must write.

    Args:
        prices: of every machine.
    """

    def __init__(self, prices: Prices) -> None:
        self.prices = prices
        self.second_use = SecondUse()

    def place(self, job: Job, prefill: Sequence[View], decode: Sequence[View]) -> Placement:
        """Choose the machines that serve a request.

        Args:
            prefill: machines that only compute prompts; may be empty.
            decode: machines that make tokens, and can compute prompts; at least one.
        """
        raise NotImplementedError

    def keep(self, keys: Sequence[int]) -> Sequence[int]:
        """Which blocks of a prompt that has just been computed the tier should keep."""
        return self.second_use.worth_keeping(keys)

    def fetch(self, prompt_len: int, cached_tokens: int, stored_tokens: int) -> int:
        """How many tokens to load from the tier before a prompt is computed."""
        return tokens_to_load(self.prices, prompt_len, cached_tokens, stored_tokens)


class EarliestFirstToken(FleetPolicy):
    """The pair that has the first token first. Mooncake's idea, without its forecasts."""

    def place(self, job: Job, prefill: Sequence[View], decode: Sequence[View]) -> Placement:
        """The placement with the least :func:`first_token_seconds`.

        Every prefill machine, and None, with every decode machine that has room for the whole
        prompt, hits included (with all of them, if none has). Of equal ones that whose decode
        machine runs fewer requests; then the first decode machine, and with it None before the
        prefill machines.
        """
        # TODO 16.8
        raise NotImplementedError(
            "TODO 16.8: write EarliestFirstToken.place in labs/16-policies-and-capstone/fleet.py"
            " (phase 16, 02-mini-build.md#task-8)"
        )


# ---------------------------------------------------------------------- simpler ones, to compare


class RoundRobin(FleetPolicy):
    """Each machine in turn."""

    def __init__(self, prices: Prices) -> None:
        super().__init__(prices)
        self.turn = -1

    def place(self, job: Job, prefill: Sequence[View], decode: Sequence[View]) -> Placement:
        self.turn += 1
        first = self.turn % len(prefill) if prefill else None
        return Placement(first, self.turn % len(decode))


class LeastLoaded(FleetPolicy):
    """The machine that has least to do, of each kind."""

    def place(self, job: Job, prefill: Sequence[View], decode: Sequence[View]) -> Placement:
        first = _least([view.queued_seconds for view in prefill]) if prefill else None
        return Placement(first, _least([view.running for view in decode]))


class PrefixGreedy(FleetPolicy):
    """The machine that has most of the prompt cached; a popular prompt always goes to the same
    machine."""

    def place(self, job: Job, prefill: Sequence[View], decode: Sequence[View]) -> Placement:
        known = [(-view.cached_tokens, view.queued_seconds) for view in prefill]
        first = _least(known) if prefill else None
        return Placement(first, _least([view.running for view in decode]))


class AlwaysLocal(FleetPolicy):
    """No prefill machines: every machine does both. Plain replicas behind a load balancer."""

    def place(self, job: Job, prefill: Sequence[View], decode: Sequence[View]) -> Placement:
        cost = [
            first_token_seconds(self.prices, job, None, view) + view.running * self.prices.row
            for view in decode
        ]
        return Placement(None, _least(cost))


def _least(values: Sequence[Any]) -> int:
    return min(range(len(values)), key=values.__getitem__)


FLEET_POLICIES: dict[str, type[FleetPolicy]] = {
    "round-robin": RoundRobin,
    "least-loaded": LeastLoaded,
    "prefix-greedy": PrefixGreedy,
    "always-local": AlwaysLocal,
    "earliest-first-token": EarliestFirstToken,
}
