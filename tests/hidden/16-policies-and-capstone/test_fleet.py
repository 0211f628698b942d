"""Fleets: the rules against the reference's on drawn numbers, the policy in the arena's traces."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from labkit.arena.cost import load_model
from labkit.arena.fleet.contest import evaluate, fleet_of, load_link
from labkit.arena.fleet.simulator import prices_of, serve
from labkit.arena.fleet.traces import TRACES
from labkit.arena.remote import RemoteFleetPolicy
from labkit.process.worker import Program
from mini_vllm.policies.fleet import FleetPolicy, LeastLoaded

FLEET = "mini_vllm.policies.fleet"
CAPSTONE = "mini_vllm.policies.capstone_fleet:CapstoneFleet"
many = settings(
    max_examples=25, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
quarters = st.integers(0, 40).map(lambda n: n / 4)
"""Seconds that add up exactly, in whatever order."""


def same(subject: Any, reference: Any, p: Program) -> None:
    """Both see the same."""
    theirs, yours = reference.run(p), subject.run(p)
    assert yours == theirs


def make_prices(p: Program, numbers: list[float]) -> Any:
    return p.new(f"{FLEET}:Prices", *numbers)


def make_view(p: Program, drawn: tuple[int, float, int, int]) -> Any:
    return p.new(f"{FLEET}:View", *drawn)


prices = st.lists(quarters, min_size=7, max_size=7)
views = st.tuples(
    st.integers(0, 6).map(lambda n: 16 * n), quarters, st.integers(0, 9), st.integers(0, 200)
)


@many
@given(
    st.integers(1, 3), st.integers(1, 12),
    st.lists(st.lists(st.integers(0, 9), max_size=6, unique=True), max_size=12),
)  # fmt: skip
def test_16_7_the_book_of_uses(
    subject: Any, reference: Any, threshold: int, capacity: int, prompts: list[list[int]]
) -> None:
    """Any sequence of prompts: what is worth keeping, and what is remembered in which order."""
    p = Program()
    tracker = p.new(f"{FLEET}:SecondUse", threshold, capacity)
    for keys in prompts:
        p.see(tracker.worth_keeping(keys))
        p.see(p.call("builtins:list", tracker.uses.items()))
    same(subject, reference, p)


@many
@given(
    prices, st.integers(1, 400),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=9),
)  # fmt: skip
def test_16_7_carry_or_compute(
    subject: Any, reference: Any, numbers: list[float], length: int, pairs: list[tuple[int, int]]
) -> None:
    """Any prices, any contents of cache and tier."""
    p = Program()
    known = make_prices(p, numbers)
    for cached, stored in pairs:
        p.see(p.call(f"{FLEET}:tokens_to_load", known, length, 16 * cached, 16 * stored))
    same(subject, reference, p)


@many
@given(prices, st.integers(96, 300), st.none() | views, views)
def test_16_8_the_first_tokens_time(
    subject: Any, reference: Any, numbers: list[float], length: int, first: Any, second: Any
) -> None:
    """Any machine, or any two."""
    p = Program()
    known, job = make_prices(p, numbers), p.new(f"{FLEET}:Job", length, 1.0, 1.0)
    prefill = None if first is None else make_view(p, first)
    p.see(p.call(f"{FLEET}:first_token_seconds", known, job, prefill, make_view(p, second)))
    same(subject, reference, p)


@many
@given(
    prices, st.integers(96, 180), st.lists(views, max_size=4),
    st.lists(views, min_size=1, max_size=4),
)  # fmt: skip
def test_16_8_the_earliest_of_all(
    subject: Any, reference: Any, numbers: list[float], length: int, first: Any, second: Any
) -> None:
    """Any fleet, with and without room, and with many ties."""
    p = Program()
    policy = p.new(f"{FLEET}:EarliestFirstToken", make_prices(p, numbers))
    job = p.new(f"{FLEET}:Job", length, 1.0, 1.0)
    groups = [[make_view(p, drawn) for drawn in group] for group in (first, second)]
    found = policy.place(job, *groups)
    p.see(found.prefill)
    p.see(found.decode)
    same(subject, reference, p)


# ---------------------------------------------------------------------- the capstone

SEEDS = 2


@pytest.fixture(scope="module")
def draw(request: Any) -> random.Random:
    """Seeds that nobody has seen before; those of one grade repeat with its own seed."""
    return random.Random(f"fleet:{request.config.getoption('hypothesis_seed', None) or 0}")


def in_time(make: Any, name: str, seed: int) -> float:
    """Share of the requests that kept both promises."""
    cost, link, trace = load_model(), load_link(), TRACES[name]
    policy: FleetPolicy = make(prices_of(cost, link))
    run = serve(policy, trace, trace.arrivals(seed), fleet_of(8), cost, link)
    return evaluate(run, trace, 8).share


@pytest.fixture(scope="module")
def races(subject: Any, draw: random.Random) -> dict[str, tuple[float, float]]:
    """By trace: the learner's share, and that of the least loaded."""
    found = {}
    for name in TRACES:
        seeds = [draw.randrange(2**31) for _ in range(SEEDS)]
        mine = sum(
            in_time(lambda p: RemoteFleetPolicy(subject, CAPSTONE, p), name, seed) for seed in seeds
        )
        theirs = sum(in_time(LeastLoaded, name, seed) for seed in seeds)
        found[name] = (round(mine / SEEDS, 4), round(theirs / SEEDS, 4))
    return found


def means(races: dict[str, tuple[float, float]]) -> tuple[float, float]:
    mine, theirs = (sum(pair[i] for pair in races.values()) / len(races) for i in (0, 1))
    return mine, theirs


def test_16_9_more_requests_in_time_on_fresh_traces(
    races: dict[str, tuple[float, float]], subject: Any
) -> None:
    """Six traces, fresh seeds: a larger share in time than by the least loaded."""
    mine, theirs = means(races)
    assert mine > theirs, f"yours {mine:.3f}, theirs {theirs:.3f}: {races}"


def test_16_9_two_in_a_hundred_more(races: dict[str, tuple[float, float]], subject: Any) -> None:
    """The same traces: at least two of a hundred requests more."""
    mine, theirs = means(races)
    assert mine >= theirs + 0.02, f"yours {mine:.3f}, theirs {theirs:.3f}: {races}"


def test_16_9_no_trace_is_given_up(races: dict[str, tuple[float, float]], subject: Any) -> None:
    """None of the six has less than four fifths of what the least loaded keeps."""
    for name, (mine, theirs) in races.items():
        assert mine >= 0.8 * theirs, f"{name}: yours {mine:.0%}, theirs {theirs:.0%}"
