"""Task 16.9: your policy for eight machines, beside the least loaded."""

from __future__ import annotations

from labkit.arena.fleet.contest import FleetMatch, play_class
from labkit.arena.fleet.traces import TRACES
from labkit.testing import Divergence, expect
from mini_vllm.policies.capstone_fleet import CapstoneFleet
from mini_vllm.policies.fleet import Job, LeastLoaded, Placement, Prices, View

PRICES = Prices(prompt=0.006, token=8e-5, pair=8e-8, trip=0.002, carried=1e-5, step=0.005, row=3e-4)
SEED = 3


def test_16_9_every_answer_is_a_machine() -> None:
    """No request is sent away: at any load, a prefill machine or None, and a decode machine."""
    policy = CapstoneFleet(PRICES)
    busy, quiet = View(0, 90.0, 64, 0), View(512, 0.0, 0, 16_000)
    for length in (1, 60, 1800):
        for prefill in ([], [busy], [busy, quiet]):
            for decode in ([busy], [quiet, busy]):
                found = Placement(*policy.place(Job(length, 0.5, 0.03), prefill, decode))
                at = f"a prompt of {length}, {len(prefill)} prefill, {len(decode)} decode machines"
                first: list[int | None] = [None, *range(len(prefill))]
                at_first = f"{at}: is its prefill one of {first}?"
                expect(found.prefill in first, True, at=at_first, placed=found)
                second = [*range(len(decode))]
                at_second = f"{at}: is its decode one of {second}?"
                expect(found.decode in second, True, at=at_second, placed=found)


def test_16_9_every_request_is_served() -> None:
    """A short run of each trace; the arena counts."""
    for name in TRACES:
        figures = play_class(FleetMatch("yours", name, SEED, requests=60), CapstoneFleet)
        expect(figures.requests, 60, at=f"60 requests of `{name}`: how many were served?")


def test_16_9_more_requests_in_time_than_by_the_least_loaded() -> None:
    """All six traces: the share of requests that kept both of their promises, on average."""
    state, yours, theirs = {}, 0.0, 0.0
    for name in TRACES:
        match = FleetMatch("", name, SEED, requests=480 if name == "bursts" else 300)
        mine, other = (play_class(match, cls).share for cls in (CapstoneFleet, LeastLoaded))
        state[name] = f"yours {mine:.0%}, theirs {other:.0%}"
        yours, theirs = yours + mine / len(TRACES), theirs + other / len(TRACES)
    if yours <= theirs:
        at = f"share of requests in time, mean of the six traces, seed {SEED}"
        raise Divergence(at, f"{yours:.3f}", f"more than {theirs:.3f}", state)
