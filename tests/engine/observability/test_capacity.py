"""What a service can carry: laws on traces, and latencies that say what users feel."""

from __future__ import annotations

import math
import random

import pytest

from mini_vllm.observability.capacity import (
    Flow,
    blocks_for,
    bounds_from_buckets,
    by_schedule,
    little,
    operational_laws,
    percentile,
    throughput_bound,
    with_omitted,
)


def test_littles_law_is_the_area_under_the_number() -> None:
    """Counted once by requests and once by time: at 0.5 s two are there, and so on."""
    stays = [(0.0, 2.0), (0.25, 1.25), (3.0, 4.0)]
    flow = little(stays, window=4.0)
    there = [sum(a <= (i + 0.5) / 100 < b for a, b in stays) for i in range(400)]
    assert flow.number == pytest.approx(sum(there) / 400) == pytest.approx(1.0)
    assert flow.number == pytest.approx(flow.rate * flow.seconds)
    assert little([], 1.0) == Flow(0.0, 0.0, 0.0)
    with pytest.raises(ValueError, match=r"arrived at 2 s and left at 1 s"):
        little([(2, 1)], 4.0)
    with pytest.raises(ValueError, match="window is 0 s; it must be above 0"):
        little([], 0)


def test_blocks_from_arrivals() -> None:
    """10 requests/s that stay 2 s are 20 at once; 100 tokens are 6.75 blocks of 16 each."""
    assert blocks_for(Flow(10.0, 2.0, 20.0), 100, 16, headroom=1.0) == 135
    assert blocks_for(Flow(10.0, 2.0, 20.0), 100, 16) == 270


def test_the_bottleneck_sets_the_limit_and_the_knee() -> None:
    laws = operational_laws({"host": 3.0, "device": 8.0}, completed=100, seconds=10.0)
    assert laws.bottleneck == "device" and laws.throughput == 10.0
    assert laws.utilisation == {"host": 0.3, "device": 0.8}
    assert laws.most == pytest.approx(12.5) and laws.knee == pytest.approx(11 / 8)
    assert throughput_bound(laws, 1) == pytest.approx(1 / 0.11)
    assert throughput_bound(laws, 2) == throughput_bound(laws, 100) == pytest.approx(12.5)
    assert operational_laws({"host": 0.0}, 1, 1.0).most == math.inf
    with pytest.raises(ValueError, match=r"11\.0\} s of 10\.0 s; a part can be busy for the whole"):
        operational_laws({"device": 11.0}, 1, 10.0)
    with pytest.raises(ValueError, match="0 parts, 1 requests"):
        operational_laws({}, 1, 10.0)


def test_percentiles_are_values_that_were_there() -> None:
    values = [float(n) for n in range(1, 101)]
    assert [percentile(values, p) for p in (50, 99, 100, 0.5)] == [50.0, 99.0, 100.0, 1.0]
    assert percentile([3.0], 99) == 3.0
    with pytest.raises(ValueError, match="percentile 0 of 1 values"):
        percentile([1.0], 0)


def test_a_histogram_knows_its_percentile_to_a_bucket() -> None:
    rng, ends = random.Random(0), [0.01, 0.1, 1.0, math.inf]
    values = [rng.expovariate(3.0) for _ in range(500)]
    counts = [0] * 4
    for value in values:
        counts[next(i for i, end in enumerate(ends) if value <= end)] += 1
    for percent in (1, 50, 90, 99, 100):
        low, high = bounds_from_buckets(ends, counts, percent)
        assert low < percentile(values, percent) <= high
    with pytest.raises(ValueError, match="0 values in 2 buckets"):
        bounds_from_buckets([1.0, math.inf], [0, 0], 50)


def test_a_client_that_waits_hides_the_requests_that_it_did_not_send() -> None:
    """One hang of 1 s among answers of 10 ms, for a client that meant to send every 100 ms."""
    measured = [0.01] * 99 + [1.0]
    assert percentile(measured, 95) == 0.01
    whole = with_omitted(measured, 0.1)
    assert len(whole) == 109 and sorted(whole)[-3:] == pytest.approx([0.8, 0.9, 1.0])
    assert percentile(whole, 95) == pytest.approx(0.5)
    assert with_omitted([0.05], 0.1) == [0.05]
    with pytest.raises(ValueError, match="interval is 0 s"):
        with_omitted([1.0], 0)


def test_latency_begins_when_the_request_should_have_been_sent() -> None:
    assert by_schedule([0.0, 0.1, 0.2], [1.0, 1.1, 1.2]) == pytest.approx([1.0, 1.0, 1.0])
    with pytest.raises(ValueError, match="zip"):
        by_schedule([0.0], [])
