"""Task 19.2: what the busy times of the parts say about the whole."""

from __future__ import annotations

import math
from typing import Any

import pytest

from labkit.testing import expect
from mini_vllm.observability.capacity import operational_laws, throughput_bound

BUSY = {"front end": 2.0, "host": 6.0, "device": 8.0}


def test_19_2_demand_is_busy_time_by_requests(near: Any) -> None:
    """40 requests in 10 s; the device was busy for 8 of them."""
    laws = operational_laws(BUSY, 40, 10.0)
    near(laws.throughput, 4.0, at="40 requests in 10 s: throughput")
    near(laws.demand["device"], 0.2, at="busy for 8 s, 40 requests: demand of the device")
    near(laws.utilisation["device"], 0.8, at="busy for 8 s of 10: utilisation of the device")
    expect(list(laws.demand), list(BUSY), at="parts with a demand")
    expect(list(laws.utilisation), list(BUSY), at="parts with a utilisation")


def test_19_2_utilisation_is_throughput_times_demand(near: Any) -> None:
    """The utilisation law, for each part."""
    laws = operational_laws(BUSY, 37, 9.0)
    for part in BUSY:
        right = laws.throughput * laws.demand[part]
        near(laws.utilisation[part], right, at=f"{part}: utilisation, X times D")


def test_19_2_the_bottleneck_sets_the_limit(near: Any) -> None:
    """The part with the largest demand, of equal ones the first: 0.2 s each, so 5 a second."""
    laws = operational_laws(BUSY, 40, 10.0)
    expect(laws.bottleneck, "device", at="busy for 2, 6 and 8 s: bottleneck")
    near(laws.most, 5.0, at="0.2 s a request: most")
    equal = operational_laws({"host": 3.0, "device": 3.0}, 5, 4.0)
    expect(equal.bottleneck, "host", at="host and device both busy for 3 s: bottleneck")


def test_19_2_the_knee_is_a_whole_turn_by_the_largest_demand(near: Any) -> None:
    """Demands of 0.05, 0.15 and 0.2 s: 2 requests keep the device busy; with 1 s to think, 7."""
    near(operational_laws(BUSY, 40, 10.0).knee, 2.0, at="demands 0.05, 0.15, 0.2 s: knee")
    at = "the same and a client that thinks for 1 s: knee"
    near(operational_laws(BUSY, 40, 10.0, think=1.0).knee, 7.0, at=at)


def test_19_2_parts_that_rest_set_no_limit() -> None:
    """Nothing was busy: no limit, and no knee."""
    laws = operational_laws({"host": 0.0, "device": 0.0}, 3, 10.0)
    expect((laws.most, laws.knee), (math.inf, math.inf), at="parts that were never busy")


def test_19_2_what_cannot_be_is_refused() -> None:
    """No part, no request, no time; and a part that was busy for longer than there was."""
    for busy, completed, seconds in ((BUSY, 0, 10.0), ({}, 5, 10.0), (BUSY, 5, 0.0)):
        with pytest.raises(ValueError):
            operational_laws(busy, completed, seconds)
    with pytest.raises(ValueError):
        operational_laws({"device": 4.0, "host": 5.1}, 5, 5.0)


def test_19_2_rounding_is_not_refused(near: Any) -> None:
    """Clocks differ in the last digits: busy for 5.0001 s of 5 s counts as busy all the time."""
    near(operational_laws({"host": 5.0001}, 5, 5.0).most, 5 / 5.0001, at="busy for 5.0001 s of 5 s")


def test_19_2_few_requests_are_as_fast_as_alone(near: Any) -> None:
    """One takes 0.4 s, so two make at most 5 a second; from there on the device is full."""
    laws = operational_laws(BUSY, 40, 10.0)
    for number, right in ((1, 2.5), (2, 5.0), (3, 5.0), (100, 5.0)):
        near(throughput_bound(laws, number), right, at=f"{number} requests at a time: bound")


def test_19_2_thinking_clients_need_more_of_them(near: Any) -> None:
    """A turn of 0.4 s and 1 s of thinking: three of them are far from the limit."""
    laws = operational_laws(BUSY, 40, 10.0, think=1.0)
    near(throughput_bound(laws, 3, think=1.0), 3 / 1.4, at="3 clients that think for 1 s: bound")
    near(throughput_bound(laws, 7, think=1.0), 5.0, at="7 clients, the knee: bound")


def test_19_2_a_turn_without_time_has_no_bound() -> None:
    """Nothing is busy, no client thinks: no limit is left."""
    laws = operational_laws({"host": 0.0}, 3, 10.0)
    expect(throughput_bound(laws, 4), math.inf, at="no demand, no think time: bound")
