"""What a service can carry, what bounds a step, what is worth mending: on drawn numbers."""

from __future__ import annotations

import math
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.process.worker import Program

CAPACITY = "mini_vllm.observability.capacity:"
BOTTLENECK = "mini_vllm.observability.bottleneck:"
many = settings(max_examples=5)
seeds = given(seed=st.integers(0, 2**31))


def close(one: Any, other: Any) -> bool:
    """Equal, numbers to nine digits."""
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(close, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and close(list(one.values()), list(other.values()))
    if isinstance(other, float) and isinstance(one, int | float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
    return bool(one == other)


def same(subject: Any, reference: Any, p: Program, names: list[str]) -> None:
    """Both answer alike; the first that differs is named."""
    yours, right = subject.run(p), reference.run(p)
    for name, mine, other in zip(names, yours, right, strict=False):
        assert close(mine, other), f"{name}: {mine}"
    assert len(yours) == len(right)


def see(p: Program, made: Any, *attributes: str) -> None:
    """Observe some attributes as one list."""
    p.see([getattr(made, name) for name in attributes])


def eighths(draw: Random, low: int, high: int) -> float:
    """A number that adds up exactly, in whatever order."""
    return draw.randint(8 * low, 8 * high) / 8


# ------------------------------------------------------------------ 19.1


@many
@seeds
def test_19_1_any_stays(subject: Any, reference: Any, seed: int) -> None:
    """Up to 30 requests in a window that is longer than they are and begins at any time."""
    draw, p, names = Random(seed), Program(), []
    for _ in range(20):
        first = draw.choice((0, 0, 1000))
        begins = [first + eighths(draw, 0, 50) for _ in range(draw.randint(0, 30))]
        stays = [(begin, begin + eighths(draw, 0, 20)) for begin in begins]
        window = 71 + eighths(draw, 0, 9)
        see(p, p.call(f"{CAPACITY}little", stays, window), "rate", "seconds", "number")
        names.append(f"little of {len(stays)} stays in {window} s")
    same(subject, reference, p, names)


@many
@seeds
def test_19_1_any_pool(subject: Any, reference: Any, seed: int) -> None:
    """Blocks of any size for any flow."""
    draw, p, names = Random(seed), Program(), []
    for _ in range(30):
        flow = p.new(f"{CAPACITY}Flow", 1.0, 1.0, eighths(draw, 0, 40))
        args = eighths(draw, 0, 900), 2 ** draw.randint(0, 6), eighths(draw, 0, 3)
        p.see(p.call(f"{CAPACITY}blocks_for", flow, *args))
        names.append(f"blocks_for{args}")
    same(subject, reference, p, names)


def test_19_1_what_is_no_flow(subject: Any) -> None:
    """Windows, stays and blocks that cannot be."""
    p = Program()
    little, blocks_for = p.name(f"{CAPACITY}little"), p.name(f"{CAPACITY}blocks_for")
    flow = p.new(f"{CAPACITY}Flow", 1.0, 1.0, 1.0)
    for window in (0, -0.5):
        p.refuse("ValueError", little, [], window)
        p.refuse("ValueError", little, [(0.0, 0.0)], window)
    p.refuse("ValueError", little, [(0.0, 1.0), (2.0, 1.875), (2.0, 3.0)], 4.0)
    for args in ((1, 0), (1, -16), (-1, 16), (1, 16, -0.5)):
        p.refuse("ValueError", blocks_for, flow, *args)
    assert subject.run(p) == []


def test_19_1_equal_stays_and_pools_of_nearly_nothing(subject: Any) -> None:
    """Two requests that came and went together are two; no tokens need half a block; a flow of a
    billionth of a request needs one block."""
    p = Program()
    see(p, p.call(f"{CAPACITY}little", [(1.0, 3.0)] * 2, 4.0), "rate", "seconds", "number")
    for number, tokens in ((3.0, 0.0), (1e-10, 16.0), (0.0, 16.0)):
        flow = p.new(f"{CAPACITY}Flow", 1.0, 1.0, number)
        p.see(p.call(f"{CAPACITY}blocks_for", flow, tokens, 16))
    assert subject.run(p) == [[0.5, 2.0, 1.0], 3, 1, 0]


def test_19_1_a_trace_is_only_read(subject: Any) -> None:
    """Requests in an order of their own: the list stays as it was."""
    p = Program()
    stays = p.call("builtins:list", [(3.0, 4.0), (1.0, 2.5), (2.0, 2.25)])
    see(p, p.call(f"{CAPACITY}little", stays, 5.0), "number")
    p.see(stays)
    number, after = subject.run(p)
    assert close(number, [0.55])
    assert [list(stay) for stay in after] == [[3.0, 4.0], [1.0, 2.5], [2.0, 2.25]], (
        f"the trace is {after} after the call; it must stay as it was given"
    )


# ------------------------------------------------------------------ 19.2

LAWS = ("throughput", "demand", "utilisation", "bottleneck", "most", "knee")


@many
@seeds
def test_19_2_any_parts(subject: Any, reference: Any, seed: int) -> None:
    """Up to six parts, some of them equally busy, some never."""
    draw, p, names = Random(seed), Program(), []
    for _ in range(20):
        busy = {
            f"part {i}": draw.choice((0.0, 2.0, eighths(draw, 0, 10)))
            for i in range(draw.randint(1, 6))
        }
        completed, think = draw.randint(1, 90), draw.choice((0.0, eighths(draw, 0, 9)))
        laws = p.call(f"{CAPACITY}operational_laws", busy, completed, 10.0, think)
        see(p, laws, *LAWS)
        names.append(f"busy for {busy}, {completed} requests, think {think}")
        for number in (1, draw.randint(1, 40), 500):
            p.see(p.call(f"{CAPACITY}throughput_bound", laws, number, think))
            names.append(f"bound of {number}, busy for {busy}, think {think}")
    same(subject, reference, p, names)


def test_19_2_what_no_law_holds_for(subject: Any) -> None:
    """Traces that cannot be; a clock's rounding can."""
    p = Program()
    laws = p.name(f"{CAPACITY}operational_laws")
    for args in (({}, 1, 1.0), ({"a": 1.0}, 0, 1.0), ({"a": 0.0}, 1, 0.0), ({"a": 0.0}, 1, -1.0)):
        p.refuse("ValueError", laws, *args)
    p.refuse("ValueError", laws, {"a": 1.0, "b": 10.002}, 5, 10.0)
    p.see(laws({"a": 10.0009}, 5, 10.0).bottleneck)
    assert subject.run(p) == ["a"]


def test_19_2_of_equal_parts_the_first(subject: Any) -> None:
    """The first as the parts were given, not by its name."""
    p = Program()
    for busy in ({"host": 2.0, "device": 2.0, "bus": 1.0}, {"b": 0.0, "a": 0.0}):
        p.see(p.call(f"{CAPACITY}operational_laws", busy, 4, 8.0).bottleneck)
    found = subject.run(p)
    assert found == ["host", "b"], f"the bottlenecks are {found}, not the first of equal parts"


def test_19_2_a_bound_for_other_clients(subject: Any) -> None:
    """The think time of a bound is its own, not the laws'; no request at a time is no rate."""
    p = Program()
    laws = p.call(f"{CAPACITY}operational_laws", {"a": 4.0, "b": 2.0}, 2, 8.0, 1.0)
    for number, think in ((0, 0.0), (1, 0.0), (3, 0.0), (3, 9.0), (12, 9.0)):
        p.see(p.call(f"{CAPACITY}throughput_bound", laws, number, think))
    assert subject.run(p) == [0.0, 1 / 3, 0.5, 0.25, 0.5]


# ------------------------------------------------------------------ 19.3


@many
@seeds
def test_19_3_any_step(subject: Any, reference: Any, seed: int) -> None:
    """Steps of which parts are often equal."""
    draw, p, names = Random(seed), Program(), []
    for _ in range(60):
        seconds = draw.randint(1, 12)
        kernels = draw.randint(0, seconds)
        figures = (
            float(seconds), float(kernels), draw.randint(0, 24), 0.25, float(draw.randint(0, 12)),
            float(draw.randint(0, 12)),
        )  # fmt: skip
        bound = p.call(f"{BOTTLENECK}classify_step", p.new(f"{BOTTLENECK}StepProfile", *figures))
        see(p, bound, "by", "seconds", "factor")
        names.append(f"StepProfile{figures}")
    same(subject, reference, p, names)


def test_19_3_what_is_no_step(subject: Any) -> None:
    """Times that cannot be; a thousandth too long can."""
    p = Program()
    classify = p.name(f"{BOTTLENECK}classify_step")

    def step(*figures: float) -> Any:
        return p.new(f"{BOTTLENECK}StepProfile", *figures)

    for wrong in (
        (1.0, 1.1, 0, 0.0, 0.0, 0.0), (0.0, 0.0, 0, 0.0, 0.0, 0.0), (-1.0, -2.0, 0, 0.0, 0.0, 0.1),
        (1.0, -0.1, 0, 0.0, 0.0, 0.0), (1.0, 0.5, 1, -0.1, 0.0, 0.0), (1.0, 0.5, 0, 0.0, -0.1, 0.2),
        (1.0, 0.5, 0, 0.0, 0.2, -0.1), (1.0, 1.002, 0, 0.0, 0.0, 0.0),
    ):  # fmt: skip
        p.refuse("ValueError", classify, step(*wrong))
    see(p, classify(step(1.0, 1.0009, 5, 0.1, 0.0, 0.0)), "by", "factor")
    see(p, classify(step(1.0, 1.0009, 5, 0.1, 0.75, 0.0)), "by")
    see(p, classify(step(1.0, 1.001, 5, 0.1, 0.75, 0.0)), "by")
    assert subject.run(p) == [["memory", math.inf], ["memory"], ["memory"]]


# ------------------------------------------------------------------ 19.4


@many
@seeds
def test_19_4_any_speed_up(subject: Any, reference: Any, seed: int) -> None:
    """Any share, any factor, and free; nearly all is not all."""
    draw, p, names = Random(seed), Program(), ["of nearly all"]
    p.see(p.call(f"{BOTTLENECK}amdahl", 1 - 2.0**-40, math.inf))
    for _ in range(30):
        args = draw.choice((0.0, 1.0, draw.random())), draw.choice((math.inf, 1, 0.25, 7 / 3))
        p.see(p.call(f"{BOTTLENECK}amdahl", *args))
        names.append(f"amdahl{args}")
    same(subject, reference, p, names)


@many
@seeds
def test_19_4_any_stacks(subject: Any, reference: Any, seed: int) -> None:
    """Up to 20 stacks of few functions, so that they call themselves and each other."""
    draw, p, names = Random(seed), Program(), []
    for _ in range(12):
        stacks = {}
        for _ in range(draw.randint(0, 20)):
            depth = draw.choice((0, 1, 2, 3, 6))
            stacks[tuple(draw.choices("abcdefg", k=depth))] = float(draw.randint(0, 4))
        found = p.call(f"{BOTTLENECK}which_to_mend", stacks)
        for attribute in ("name", "own", "whole", "factor"):
            p.see_each(found, attribute)
            names.append(f"{attribute} of {stacks}")
    same(subject, reference, p, names)


def test_19_4_without_time_there_is_none(subject: Any) -> None:
    """No stack, stacks of no time, and time that belongs to no function."""
    p = Program()
    which = p.name(f"{BOTTLENECK}which_to_mend")
    for stacks in ({}, {("a", "b"): 0.0, (): 0.0}, {(): 1.0}):
        p.see(which(stacks))
    assert subject.run(p) == [[], [], []]


def test_19_4_rounding_makes_no_share_above_1(subject: Any) -> None:
    """0.1 + 0.2 + 0.3 is more than 0.6: `a` is in all stacks, and there is an answer."""
    p = Program()
    stacks = {("a",): 0.1, ("a", "b"): 0.2, ("a", "c"): 0.3}
    p.see_each(p.call(f"{BOTTLENECK}which_to_mend", stacks), "name")
    assert subject.run(p) == [["c", "b", "a"]]


def test_19_4_deep_stacks_cost_as_much_as_they_are_long(subject: Any) -> None:
    """Four times the stacks, four times the steps."""
    p = Program()
    which = p.name(f"{BOTTLENECK}which_to_mend")
    for number in (100, 400):
        stacks = {(f"f{i}", "g", f"h{i}"): 1.0 for i in range(number)}
        p.see(p.call("labkit.inside.cost:steps", which, stacks))
    few, lots = subject.run(p)
    assert lots < 8 * few


def test_19_4_shares_that_cannot_be(subject: Any) -> None:
    """Outside of 0 to 1, or no factor."""
    p = Program()
    for args in ((1.001, 2), (-0.001, 2), (math.nan, 2), (0.5, 0), (0.5, -3)):
        p.refuse("ValueError", p.name(f"{BOTTLENECK}amdahl"), *args)
    assert subject.run(p) == []


# ------------------------------------------------------------------ 19.7, 19.8


@many
@seeds
def test_19_7_any_values(subject: Any, reference: Any, seed: int) -> None:
    """Any percent of any number of values."""
    draw, p, names = Random(seed), Program(), []
    for _ in range(40):
        values = [eighths(draw, 0, 9) for _ in range(draw.randint(1, 60))]
        percent = draw.choice((50, 95, 99, 99.9, 100, draw.randint(1, 99)))
        p.see(p.call(f"{CAPACITY}percentile", values, percent))
        names.append(f"percentile {percent} of {values}")
    same(subject, reference, p, names)


@many
@seeds
def test_19_7_any_histogram(subject: Any, reference: Any, seed: int) -> None:
    """Buckets of which many are empty."""
    draw, p, names = Random(seed), Program(), []
    bounds = [0.5, 1.0, 2.5, 10.0, math.inf]
    for _ in range(30):
        counts = [draw.choice((0, 0, 1, draw.randint(0, 40))) for _ in bounds]
        counts[draw.randrange(5)] += 1
        percent = draw.choice((1, 50, 99, 100, draw.randint(1, 99)))
        p.see(p.call(f"{CAPACITY}bounds_from_buckets", bounds, counts, percent))
        names.append(f"percentile {percent} of {counts}")
    same(subject, reference, p, names)


def test_19_7_what_has_no_percentile(subject: Any) -> None:
    """No values, no such percent, and ends that do not fit."""
    p = Program()
    percentile, bounds = (p.name(f"{CAPACITY}{n}") for n in ("percentile", "bounds_from_buckets"))
    for args in (([], 50), ([1.0], 0), ([1.0], 100.5), ([1.0], -1)):
        p.refuse("ValueError", percentile, *args)
    for counts, percent in (([0, 0], 50), ([1], 50), ([1, 1, 1], 50), ([1, 1], 0), ([1, 1], 101)):
        p.refuse("ValueError", bounds, [1.0, math.inf], counts, percent)
    values = p.call("builtins:list", [3.0, 1.0, 2.0])
    p.see(percentile(values, 50))
    p.see(values)
    assert subject.run(p) == [2.0, [3.0, 1.0, 2.0]]


def test_19_7_every_percent_of_a_hundred(subject: Any) -> None:
    """The rank of p is p itself: 1 to 100, and buckets that end at 7, 14, 28, 55 and 57 of them."""
    p = Program()
    for percent in range(1, 101):
        p.see(p.call(f"{CAPACITY}percentile", list(range(1, 101)), percent))
    for percent in (7, 14, 28, 55, 57):
        counts, ends = [percent, 100 - percent], [1.0, math.inf]
        p.see(p.call(f"{CAPACITY}bounds_from_buckets", ends, counts, percent)[1])
    assert subject.run(p) == [*range(1, 101), *[1.0] * 5]


def test_19_7_percents_that_are_not_whole(subject: Any) -> None:
    """Of 2,000 values: half a percent of the largest is left out, or nearly all are."""
    p, right = Program(), {99.5: 1990, 99.95: 1999, 0.25: 5, 0.001: 1}
    for percent in right:
        p.see(p.call(f"{CAPACITY}percentile", list(range(2000, 0, -1)), percent))
    for percent, rank in right.items():
        counts = [rank - 1, 1, 2000 - rank]
        p.see(p.call(f"{CAPACITY}bounds_from_buckets", [1.0, 2.0, math.inf], counts, percent)[1])
    assert subject.run(p) == [*right.values(), *[2.0] * 4]


@many
@seeds
def test_19_8_any_wait(subject: Any, reference: Any, seed: int) -> None:
    """Latencies of up to 20 intervals, in eighths."""
    draw, p, names = Random(seed), Program(), []
    for _ in range(20):
        interval = draw.choice((0.125, 0.5, 1.0, 1.5))
        latencies = [interval * eighths(draw, 0, 20) for _ in range(draw.randint(0, 12))]
        kept = p.call("builtins:list", latencies)
        found = p.call(f"{CAPACITY}with_omitted", kept, interval)
        p.see(p.call("builtins:sorted", found))
        p.see(found[p.call("builtins:slice", len(latencies))])
        p.see(kept)
        where = f"{latencies}, interval {interval}"
        names += [f"with_omitted of {where}", f"its begin, {where}", f"the latencies of {where}"]
    same(subject, reference, p, names)


def test_19_8_schedules(subject: Any) -> None:
    """From when a request was due; intervals and lists that cannot be; tenths."""
    p = Program()
    by_schedule, omitted = (p.name(f"{CAPACITY}{n}") for n in ("by_schedule", "with_omitted"))
    p.see(by_schedule([0.0, 0.5, 1.0], [2.0, 1.0, 1.0]))
    p.see(by_schedule([1.0, 0.0, 0.5], [1.5, 2.0, 1.0]))
    p.see(by_schedule([], []))
    for lengths in (([0.0], []), ([], [1.0]), ([0.0, 1.0], [1.0])):
        p.refuse("ValueError", by_schedule, *lengths)
    for interval in (0, -0.1):
        p.refuse("ValueError", omitted, [], interval)
    for tenths in (2, 3, 6, 7, 9, 12, 30):
        p.see(p.call("builtins:len", omitted([tenths / 10], 0.1)))
    p.see(p.call("builtins:len", omitted([3000.0], 1.0)))
    assert subject.run(p) == [[2.0, 0.5, 0.0], [0.5, 2.0, 0.5], [], 2, 3, 6, 7, 9, 12, 30, 3000]
