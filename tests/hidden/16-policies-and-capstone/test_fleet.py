"""Fleets: the rules against the reference's on drawn numbers, the policy in the arena's traces."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.arena.cost import load_model
from labkit.arena.fleet.contest import evaluate, fleet_of, load_link
from labkit.arena.fleet.simulator import prices_of, serve
from labkit.arena.fleet.traces import TRACES
from labkit.arena.remote import RemoteFleetPolicy
from labkit.process.worker import Program
from mini_vllm.policies.fleet import FleetPolicy, Job, LeastLoaded, View

FLEET = "mini_vllm.policies.fleet"
CAPSTONE = "mini_vllm.policies.capstone_fleet:CapstoneFleet"
many = settings(max_examples=25)
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


def test_16_7_every_key_is_itself(subject: Any) -> None:
    """Keys of any size: those that fewer bits, a float or Python's `hash()` take for one are not
    one. None has been used before, and then each of them has."""
    p = Program()
    book = p.new(f"{FLEET}:SecondUse", 2, 4000)
    steps = (0, 2**16, 2**20, 2**31, 2**32, 2**53, 2**61 - 1, 2**63, 2**64, 2**80)
    keys = [start + step for start in range(40) for step in steps]
    p.see([book.worth_keeping(keys), book.worth_keeping(keys)])
    assert subject.run(p) == [[[], keys]], "two keys were taken for one, or some were left out"


@many
@given(
    prices, st.integers(9 * 16, 400),
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


def test_16_7_an_answer_stays(subject: Any) -> None:
    """What was worth keeping is told in a list of its own; the prompt's keys are only read."""
    p = Program()
    book = p.new(f"{FLEET}:SecondUse", 1, 9)
    keys = p.call("builtins:list", [1, 2])
    answers = [book.worth_keeping(keys), book.worth_keeping([3])]
    p.see([*answers, keys])
    assert subject.run(p) == [[[1, 2], [3], [1, 2]]]


def test_16_7_the_book_by_hand(subject: Any) -> None:
    """Uses are counted, each makes young, and the oldest goes when there are more than fit."""
    p = Program()
    book = p.new(f"{FLEET}:SecondUse", 2, 3)
    for keys in ([1, 2, 3], [1], [4], [2], [1, 4], [2, 1]):
        p.see(book.worth_keeping(keys))
    p.see(p.call("builtins:list", book.uses.items()))
    *worth, uses = subject.run(p)
    # 4 pushes out 2, for 1 was used again; then 2 pushes out 3, and begins at 1.
    assert worth == [[], [1], [], [], [1, 4], [2, 1]]
    assert [tuple(pair) for pair in uses] == [(4, 2), (2, 2), (1, 4)]


def test_16_7_edges_of_the_book(subject: Any) -> None:
    """A tuple of keys; and a key that a prompt has twice is used twice."""
    p = Program()
    book = p.new(f"{FLEET}:SecondUse", 2, 3)
    for keys in ((7, 8), (8,), (9, 9)):
        p.see(book.worth_keeping(keys))
    p.see(p.call("builtins:list", book.uses.items()))
    *worth, uses = subject.run(p)
    assert worth == [[], [8], [9]]
    assert [tuple(pair) for pair in uses] == [(7, 1), (8, 2), (9, 2)]


def test_16_7_the_way_by_hand(subject: Any) -> None:
    """A trip of 10 and 1 a token, computing for 2 and a sixteenth a pair: both sides of the border,
    and the border."""
    p = Program()
    plain = make_prices(p, [3.0, 2.0, 0.0, 10.0, 1.0, 1.0, 1.0])
    pairs = make_prices(p, [3.0, 0.0, 0.0625, 10.0, 1.0, 1.0, 1.0])
    quick = make_prices(p, [3.0, 0.5, 0.0, 10.0, 1.0, 1.0, 1.0])
    for known, *numbers in [
        (plain, 50, 0, 10), (plain, 50, 0, 11), (plain, 50, 30, 41), (plain, 50, 30, 40),
        (plain, 50, 30, 30), (plain, 50, 40, 20), (plain, 90, 10, 80),
        (pairs, 32, 0, 10), (pairs, 32, 0, 11), (pairs, 16, 0, 16), (pairs, 200, 0, 1),
        (quick, 90, 0, 80), (quick, 90, 64, 32), (plain, 50, 0, 50), (plain, 50, 20, 50),
    ]:  # fmt: skip
        p.see(p.call(f"{FLEET}:tokens_to_load", known, *numbers))
    assert subject.run(p) == [0, 11, 11, 0, 0, 0, 70, 0, 11, 0, 1, 0, 0, 50, 30]


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
    groups = [[make_view(p, drawn) for drawn in group] for group in (first, second)]
    for promised in (1.0, 1000.0):  # what was promised changes nothing
        found = policy.place(p.new(f"{FLEET}:Job", length, promised, promised), *groups)
        p.see(found.prefill)
        p.see(found.decode)
    same(subject, reference, p)


def test_16_8_the_time_by_hand(subject: Any) -> None:
    """A prompt of 5 and 2 a token, a trip of 10 and 1 a token; each machine's cache and queue."""
    p = Program()
    known = make_prices(p, [5.0, 2.0, 0.0, 10.0, 1.0, 1.0, 1.0])
    job = p.new(f"{FLEET}:Job", 40, 1.0, 1.0)
    busy, knows = make_view(p, (32, 60.0, 0, 0)), make_view(p, (16, 7.0, 3, 500))
    for first, second in [(None, knows), (busy, knows), (knows, busy), (None, busy)]:
        p.see(p.call(f"{FLEET}:first_token_seconds", known, job, first, second))
    assert subject.run(p) == [7 + 53, 60 + 21 + 34, 7 + 53 + 18, 60 + 21]


def test_16_8_the_placement_by_hand(subject: Any) -> None:
    """Room for exactly the prompt is room; without room on any, all are asked; the quieter of equal
    ones; short prompts stay where they are answered."""
    p = Program()
    known = make_prices(p, [5.0, 2.0, 0.0, 10.0, 1.0, 1.0, 1.0])
    policy, job = p.new(f"{FLEET}:EarliestFirstToken", known), p.new(f"{FLEET}:Job", 40, 1.0, 1.0)
    scenes = [
        ([], [(0, 5.0, 1, 39), (0, 9.0, 1, 40)]),
        ([], [(0, 9.0, 1, 3), (0, 5.0, 1, 39)]),
        ([], [(0, 0.0, 4, 99), (0, 0.0, 2, 99), (0, 0.0, 2, 99)]),
        ([(0, 0.0, 0, 0)], [(0, 0.0, 1, 99)]),
        ([(0, 30.0, 0, 0), (32, 90.0, 0, 0), (0, 20.0, 0, 0)], [(0, 200.0, 0, 99)]),
        ([(32, 0.0, 0, 0)], [(0, 300.0, 5, 99), (16, 400.0, 9, 99), (0, 72.0, 0, 99)]),
        ([], [(0, 0.0, 0, -8), (0, 9.0, 1, 40)]),  # more was promised than there is
    ]
    for first, second in scenes:
        groups = [[make_view(p, drawn) for drawn in group] for group in (first, second)]
        found = policy.place(job, *groups)
        p.see(found.prefill)
        p.see(found.decode)
    seen = subject.run(p)
    expected = [(None, 1), (None, 1), (None, 1), (None, 0), (2, 0), (0, 1), (None, 1)]
    assert list(zip(seen[::2], seen[1::2], strict=True)) == expected


def test_16_8_of_equal_ones(subject: Any) -> None:
    """135 for each pair: fewer decoding requests, then the first decode machine, and with it None
    before the prefill machines in order, however much these have to do."""
    p = Program()
    known = make_prices(p, [5.0, 2.0, 0.0, 10.0, 1.0, 1.0, 1.0])
    policy, job = p.new(f"{FLEET}:EarliestFirstToken", known), p.new(f"{FLEET}:Job", 40, 1.0, 1.0)
    idle, full, quick, slow = (0, 0.0, 0, 0), (0, 0.0, 7, 0), (0, 50.0, 1, 99), (0, 500.0, 1, 99)
    for first, second in [
        ([idle, idle], [quick]), ([full, idle], [slow]), ([idle], [slow, quick]),
        ([idle], [(0, 500.0, 2, 99), quick]),
    ]:  # fmt: skip
        groups = [[make_view(p, drawn) for drawn in group] for group in (first, second)]
        found = policy.place(job, *groups)
        p.see([found.prefill, found.decode])
    assert subject.run(p) == [[None, 0], [0, 0], [0, 0], [None, 1]]


@pytest.mark.parametrize("ttft", [1.0, 1000.0])
def test_16_8_the_earliest_though_all_are_in_time(subject: Any, ttft: float) -> None:
    """A promise of any size: the least time counts, and not whether it is kept."""
    p = Program()
    known = make_prices(p, [5.0, 2.0, 0.0, 10.0, 1.0, 1.0, 1.0])
    policy, job = p.new(f"{FLEET}:EarliestFirstToken", known), p.new(f"{FLEET}:Job", 40, ttft, ttft)
    second = [make_view(p, (0, seconds, running, 99)) for seconds, running in ((9.0, 1), (2.0, 8))]
    found = policy.place(job, [], second)
    p.see([found.prefill, found.decode])
    assert subject.run(p) == [[None, 1]]


def test_16_8_nothing_is_left_to_compute(subject: Any) -> None:
    """Every machine has all of the prompt: it is still a prompt, and a queue is still a queue."""
    p = Program()
    known = make_prices(p, [5.0, 2.0, 0.0, 10.0, 1.0, 1.0, 1.0])
    job, knows = p.new(f"{FLEET}:Job", 40, 1.0, 1.0), make_view(p, (40, 7.0, 0, 99))
    for first in (None, knows):
        p.see(p.call(f"{FLEET}:first_token_seconds", known, job, first, knows))
    assert subject.run(p) == [7 + 5, 7 + 5 + 10]


def test_16_8_a_trip_costs_though_it_carries_nothing(subject: Any) -> None:
    """The decode machine has all of the prompt; still the request is handed over."""
    p = Program()
    known = make_prices(p, [5.0, 2.0, 0.0, 10.0, 1.0, 1.0, 1.0])
    job = p.new(f"{FLEET}:Job", 40, 1.0, 1.0)
    first, second = make_view(p, (32, 60.0, 0, 0)), make_view(p, (40, 0.0, 0, 99))
    p.see(p.call(f"{FLEET}:first_token_seconds", known, job, first, second))
    assert subject.run(p) == [60 + 5 + 2 * 8 + 10]


@pytest.mark.parametrize("less", [2.0**-12, 2.0**-20, 2.0**-31])
def test_16_8_the_last_of_many_and_by_little(subject: Any, less: float) -> None:
    """Twenty machines of each kind, of which the last is the earliest by however little, also where
    it runs more than the others."""
    p = Program()
    policy = p.new(
        f"{FLEET}:EarliestFirstToken", make_prices(p, [5.0, 2.0, 0.0, 10.0, 1.0, 1.0, 1.0])
    )
    job = p.new(f"{FLEET}:Job", 40, 1.0, 1.0)
    many_first = [(0, 30.0 - less * (n == 19), 0, 0) for n in range(20)]
    for first, second in (
        (many_first, [(0, 900.0, 1, 99)]),
        ([], [(0, 30.0 - less * (n == 19), 1 + n, 99) for n in range(20)]),
    ):
        groups = [[make_view(p, drawn) for drawn in group] for group in (first, second)]
        found = policy.place(job, *groups)
        p.see([found.prefill, found.decode])
    assert subject.run(p) == [[19, 0], [None, 19]]


# ---------------------------------------------------------------------- the capstone

SEEDS = 2


@pytest.fixture(scope="module")
def draw(request: Any) -> random.Random:
    """Seeds made from the grade's own, so that a grade repeats."""
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


def test_16_9_every_request_is_placed(subject: Any, draw: random.Random) -> None:
    """Whatever the state of the fleet, and be there no room at all: machines that exist."""
    policy = RemoteFleetPolicy(subject, CAPSTONE, prices_of(load_model(), load_link()))
    for free in (0, 40, 16_000):
        for first, second in [(0, 1), (0, 3), (2, 1), (3, 5)]:
            prefill = [View(draw.choice([0, 64]), 9 * draw.random(), 0, 0) for _ in range(first)]
            decode = [
                View(draw.choice([0, 64]), draw.random(), draw.randrange(64), draw.randint(0, free))
                for _ in range(second)
            ]
            found = policy.place(Job(draw.randint(100, 1800), 0.5, 0.03), prefill, decode)
            assert found.prefill is None or found.prefill in range(first), (prefill, decode)
            assert found.decode in range(second), (prefill, decode)


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
