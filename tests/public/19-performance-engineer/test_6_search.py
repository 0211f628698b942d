"""Task 19.6: a search under a promise."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import pytest

from labkit.testing import expect
from mini_vllm.observability.experiments import Promise, successive_halving

PROMISE = Promise(ttft_p99=1.0, tpot_p50=0.1)


def search(strains: dict[str, float], least: int = 10, most: int = 40, slow: Any = None) -> Any:
    """The search, and what it has asked: configurations are letters, a strain is the TTFT."""
    asked: list[tuple[str, int]] = []

    def measure(config: str, requests: int) -> tuple[float, float]:
        asked.append((config, requests))
        return strains[config] + (slow or {}).get((config, requests), 0.0), 0.01

    return successive_halving(list(strains), measure, PROMISE, least, most), asked


def rounds(asked: list[tuple[str, int]]) -> dict[int, list[str]]:
    """Which configurations were measured with how many requests, each in alphabetical order."""
    found: dict[int, list[str]] = {}
    for config, requests in asked:
        found.setdefault(requests, []).append(config)
    return {requests: sorted(configs) for requests, configs in found.items()}


EIGHT = {"a": 0.9, "b": 0.5, "c": 3.0, "d": 2.0, "e": 0.7, "f": 4.0, "g": 5.0, "h": 6.0}


def test_19_6_the_better_half_goes_on_with_twice_as_many() -> None:
    """8 with 10 requests, 4 with 20, 2 with 40."""
    found, asked = search(EIGHT)
    expect((found.best, found.nearest), ("b", "b"), at="best and nearest of 8")
    right = {10: sorted(EIGHT), 20: ["a", "b", "d", "e"], 40: ["b", "e"]}
    expect(rounds(asked), right, at="8 configurations, 10 to 40 requests: measured")


def test_19_6_half_of_an_odd_number_is_rounded_up() -> None:
    """5, 3, 2: the middle one gets another chance."""
    _, asked = search({"a": 5.0, "b": 4.0, "c": 3.0, "d": 2.0, "e": 1.0})
    right = {10: list("abcde"), 20: ["c", "d", "e"], 40: ["d", "e"]}
    expect(rounds(asked), right, at="5 configurations: measured")


def test_19_6_the_last_round_has_most_requests() -> None:
    """10, 20, then 35, not 40."""
    _, asked = search(EIGHT, most=35)
    expect(sorted(rounds(asked)), [10, 20, 35], at="10 to 35 requests: sizes")


def test_19_6_one_that_is_alone_is_measured_once_more() -> None:
    """2 configurations up to 80: the winner of the first round goes to 80 at once."""
    _, asked = search({"a": 0.2, "b": 0.5}, most=80)
    expect(rounds(asked), {10: ["a", "b"], 80: ["a"]}, at="2 configurations, 10 to 80: measured")
    _, asked = search({"a": 0.2}, most=80)
    expect(rounds(asked), {80: ["a"]}, at="1 configuration, 10 to 80: measured")


def test_19_6_nothing_is_measured_twice() -> None:
    """One round is enough where least is most."""
    _, asked = search(EIGHT, least=40, most=40)
    expect(rounds(asked), {40: sorted(EIGHT)}, at="40 to 40 requests: measured")
    expect(max(Counter(asked).values()), 1, at="the same measurement, made how often")


def test_19_6_an_impossible_promise_has_the_answer_none() -> None:
    """The nearest is told all the same, with what it takes."""
    found, _ = search({"a": 1.2, "b": 1.1, "c": 5.0})
    expect((found.best, found.nearest), (None, "b"), at="strains 1.2, 1.1 and 5: best, nearest")
    (last,) = [one for one in found.measured if one.config == "b" and one.requests == 40]
    expect(last.strain, 1.1, at="the nearest's strain with 40 requests")


def test_19_6_the_promise_may_be_used_up() -> None:
    """A strain of exactly 1 holds it."""
    expect(search({"a": 1.0, "b": 2.0})[0].best, "a", at="strains 1 and 2: best")


def test_19_6_only_the_longest_measurement_counts() -> None:
    """With 10 requests b looks good; with 40 its slow requests show."""
    strains = {"a": 0.8, "b": 0.5, "c": 3.0, "d": 4.0, "e": 5.0, "f": 6.0}
    found, _ = search(strains, slow={("b", 40): 0.6})
    expect((found.best, found.nearest), ("a", "a"), at="b takes 0.5, and 1.1 with 40: best")
    found, _ = search(strains, slow={("b", 40): 0.6, ("a", 40): 0.4})
    expect((found.best, found.nearest), (None, "b"), at="with 40 a takes 1.2, b 1.1: best, nearest")


def test_19_6_the_tighter_half_of_the_promise_decides() -> None:
    """TTFT is fine for both; b needs 0.2 s a token where 0.1 were promised."""

    def measure(config: str, requests: int) -> tuple[float, float]:
        return (0.5, 0.05) if config == "a" else (0.1, 0.2)

    found = successive_halving(["b", "a"], measure, PROMISE, 10, 10)
    expect(found.best, "a", at="a: half of both; b: a tenth and twice: best")
    strains = {one.config: one.strain for one in found.measured}
    expect(strains, {"b": 2.0, "a": 0.5}, at="strains")


def test_19_6_of_equal_ones_the_first_is_better() -> None:
    """The order in which they were given decides."""
    found, asked = search({"c": 0.5, "a": 0.5, "b": 0.5})
    expect(found.best, "c", at="three with the same strain, c first: best")
    expect(rounds(asked)[20], ["a", "c"], at="three with the same strain: the second round")


def test_19_6_every_measurement_is_told_in_order() -> None:
    """What was asked and what came of it, round by round."""
    found, asked = search({"a": 0.9, "b": 0.5, "c": 3.0})
    told = [(one.config, one.requests) for one in found.measured]
    expect(told, asked, at="measured, in the order of the questions")
    first = next(one for one in found.measured if one.config == "a")
    expect((first.ttft_p99, first.tpot_p50), (0.9, 0.01), at="a's first measurement")


def test_19_6_what_cannot_be_searched() -> None:
    """No configuration, and sizes that cannot be."""
    for strains, least, most in (({}, 10, 40), ({"a": 1.0}, 50, 40), ({"a": 1.0}, 0, 40)):
        with pytest.raises(ValueError):
            search(strains, least, most)


def test_19_6_a_search_on_the_arenas_clock() -> None:
    """The real scheduler, a virtual clock: 0.3 s to the first token can be had, 0.05 s cannot."""
    from labkit.learner.bottlenecks import run_arena

    @functools.cache
    def measure(config: tuple[int, int], requests: int) -> tuple[float, float]:
        served = run_arena(requests, *config).served
        ttft, tpot = sorted(one.ttft for one in served), sorted(one.tpot for one in served)
        return ttft[-1], tpot[len(tpot) // 2]

    configs = [(budget, seats) for budget in (256, 1024) for seats in (4, 16)]
    held = successive_halving(configs, measure, Promise(0.3, 0.02), 6, 24)
    expect(held.best is not None, True, at="0.3 s promised: a configuration holds it")
    none = successive_halving(configs, measure, Promise(0.05, 0.02), 6, 24)
    expect(none.best, None, at="0.05 s promised: best")
    expect(none.nearest, held.nearest, at="the nearest of both searches")
