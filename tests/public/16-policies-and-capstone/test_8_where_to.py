"""Task 16.8: which machine computes a prompt, and which one answers."""

from __future__ import annotations

from labkit.testing import expect
from mini_vllm.policies.fleet import (
    EarliestFirstToken,
    Job,
    Placement,
    Prices,
    View,
    first_token_seconds,
)

PRICES = Prices(prompt=5.0, token=2.0, pair=0.0, trip=10.0, carried=1.0, step=1.0, row=0.5)
JOB = Job(prompt_len=40, ttft=100.0, tpot=5.0)


def view(cached: int = 0, queued: float = 0.0, running: int = 0, free: int = 10_000) -> View:
    return View(cached, queued, running, free)


def test_16_8_local_costs_queue_and_prompt() -> None:
    """No trip: the queue, then the prompt."""
    at = "40 tokens, local, behind 7 seconds of others: 7 + 5 + 40 * 2"
    expect(first_token_seconds(PRICES, JOB, None, view(queued=7.0)), 92.0, at=at)
    at = "16 of them are in the cache: 5 + 24 * 2"
    expect(first_token_seconds(PRICES, JOB, None, view(cached=16)), 53.0, at=at)


def test_16_8_remote_costs_the_trip_too() -> None:
    """The prefill machine's queue and prompt, and then its KV travels."""
    found = first_token_seconds(PRICES, JOB, view(queued=3.0), view(queued=50.0))
    expect(found, 138.0, at="3 + (5 + 40 * 2) + (10 + 40 * 1); the other's queue is not ours")


def test_16_8_each_cache_saves_its_own() -> None:
    """What the prefill machine has is not computed; what the decode machine has does not travel."""
    found = first_token_seconds(PRICES, JOB, view(cached=32), view(cached=16))
    expect(found, 55.0, at="32 cached here, 16 there: (5 + 8 * 2) + (10 + 24 * 1)")


def test_16_8_attention_grows_with_the_prompt() -> None:
    """The price of a pair counts for each token that is computed."""
    prices = Prices(5.0, 2.0, 0.25, 10.0, 1.0, 1.0, 0.5)
    at = "40 tokens, none cached, 0.25 a pair: 5 + 40 * (2 + 40 * 0.25)"
    expect(first_token_seconds(prices, JOB, None, view()), 485.0, at=at)


def place(prefill: list[View], decode: list[View]) -> Placement:
    return EarliestFirstToken(PRICES).place(JOB, prefill, decode)


def test_16_8_the_earliest_of_all_pairs() -> None:
    """Every pair is asked, and no prefix or queue counts alone."""
    prefill = [view(cached=32, queued=90.0), view(queued=10.0)]
    at = "0: 21 s behind 90; 1: 85 s behind 10; local: 85 s behind 200. A trip takes 50"
    expect(place(prefill, [view(queued=200.0)]), Placement(1, 0), at=at)
    prefill = [view(cached=32, queued=60.0), view(queued=10.0)]
    expect(place(prefill, [view(queued=200.0)]), Placement(0, 0), at="now 0 waits only 60")


def test_16_8_local_is_a_choice() -> None:
    """A short way: the decode machine computes the prompt itself."""
    at = "nobody is busy: 85 s here, or 85 s there and a trip of 50"
    expect(place([view()], [view()]), Placement(None, 0), at=at)
    expect(place([], [view(queued=9.0), view()]), Placement(None, 1), at="no prefill machine")


def test_16_8_room_comes_first() -> None:
    """KV that finds no room waits. Only if no machine has room, all are asked."""
    decode = [view(free=39), view(queued=20.0, free=40)]
    expect(place([], decode), Placement(None, 1), at="room for 39 and for 40 of 40 tokens")
    decode = [view(queued=20.0, free=8), view(free=0)]
    expect(place([], decode), Placement(None, 1), at="no room anywhere: the earliest of all")


def test_16_8_of_equal_ones_the_quieter() -> None:
    """A tie goes to the decode machine with fewer requests, then to the first."""
    decode = [view(running=6), view(running=2), view(running=2)]
    expect(place([], decode), Placement(None, 1), at="6, 2 and 2 requests run")
    expect(place([view(), view()], [view(queued=500.0)]), Placement(0, 0), at="two that are equal")
