"""What a service can carry, from what has been seen of it: laws that hold whatever the software.

Three quantities of any place where requests come and go, measured over the same time::

    rate       requests a second that leave            X
    seconds    that each of them was there, on average R
    number     that was there at a time, on average    L = X * R      (Little's law)

It needs no assumption about arrivals, so two of the three say the third: how many requests
run at once, and with it how much KV cache they need.

Sources: Little, "A proof for the queuing formula L = λW", Operations Research 9(3), 1961; Denning
and Buzen, "The operational analysis of queueing network models", Computing Surveys 10(3), 1978.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Flow:
    """Little's law on a trace: `number` is `rate` times `seconds`."""

    rate: float
    """Requests a second."""
    seconds: float
    """How long a request was there, on average."""
    number: float
    """Requests that were there at a time, averaged over time."""


def little(stays: Sequence[tuple[float, float]], window: float) -> Flow:
    """The flow of requests that came and went within `window` seconds.

    `rate` counts them by the window's seconds, `seconds` is the average of their stays, and
    `number` the sum of all stays by the window. No request: a flow of zeros. `stays` is only read.

    Args:
        stays: `(arrived, left)` in seconds of each request, all of them within the window, which
            may begin at any time of the clock.

    Raises:
        ValueError: for a window of no length, and a request that left before it had arrived.

    Source: vllm/benchmarks/sweep/serve_workload.py#L33-L44 (_estimate_workload_value) @ v0.22.1.
    """
    if window <= 0:
        raise ValueError(f"window is {window} s; it must be above 0")
    wrong = next((stay for stay in stays if stay[1] < stay[0]), None)
    if wrong is not None:
        raise ValueError(f"a request arrived at {wrong[0]} s and left at {wrong[1]} s, before it")
    area = sum(left - arrived for arrived, left in stays)
    return Flow(len(stays) / window, area / len(stays) if stays else 0.0, area / window)


def blocks_for(flow: Flow, mean_tokens: float, block_size: int, headroom: float = 2.0) -> int:
    """KV blocks for the requests of a flow that run at once, `mean_tokens` each.

    A request fills its blocks but the last, of which half is empty on average: that is half a block
    more than its tokens fill. Arrivals come in clusters, so a pool for the average is full half of
    the time: `headroom` is a factor for that. Rounded up once, at the end.

    Raises:
        ValueError: for blocks of less than one token, and for tokens or headroom below 0.
    """
    if block_size < 1 or min(mean_tokens, headroom) < 0:
        raise ValueError(
            f"block_size is {block_size}, mean_tokens {mean_tokens} and headroom {headroom}; "
            "block_size must be at least 1, the others 0 or more"
        )
    per_request = mean_tokens / block_size + 0.5
    return math.ceil(headroom * flow.number * per_request)


# ---------------------------------------------------------------- operational laws


@dataclass(frozen=True)
class Laws:
    """What the busy times of the parts say about the whole."""

    throughput: float
    """Requests a second, X."""
    demand: dict[str, float]
    """Seconds of each part that one request takes, D: busy time by completed requests."""
    utilisation: dict[str, float]
    """Share of the time that each part is busy, U = X * D."""
    bottleneck: str
    """The part with the largest demand: it sets the limit, and is full first."""
    most: float
    """Requests a second at most, 1 / max(D), however many there are."""
    knee: float
    """Requests at a time from which on more of them only wait: (sum(D) + Z) / max(D)."""


def operational_laws(
    busy: Mapping[str, float], completed: int, seconds: float, think: float = 0.0
) -> Laws:
    """The laws from a trace of `seconds` in which `completed` requests left.

    A part's demand is its busy time by completed requests, its utilisation that by the seconds.
    The bottleneck has the largest demand, of equal ones the first: it sets the limit of
    requests a second (`most`). At the `knee` so many are there that a whole turn of one, think
    time too, keeps the bottleneck busy. Parts that were never busy set no limit: infinity.

    Args:
        busy: seconds that each part (host, device, ...) was at work.
        think: Z, seconds between a client's answer and its next request.

    Raises:
        ValueError: without a part, a request or time, or if a part was busy for longer than
            ``seconds``; a ten-thousandth more is allowed for rounding.

    Source: Denning and Buzen, see above.
    """
    if not busy or completed < 1 or seconds <= 0:
        raise ValueError(
            f"{len(busy)} parts, {completed} requests in {seconds} s; give at least 1 part, 1 "
            "request and more than 0 s"
        )
    over = {part: time for part, time in busy.items() if time > seconds * 1.0001}
    if over:
        raise ValueError(f"{over} s of {seconds} s; a part can be busy for the whole time at most")
    demand = {part: time / completed for part, time in busy.items()}
    bottleneck = max(demand, key=lambda part: demand[part])
    largest = demand[bottleneck]
    return Laws(
        throughput=completed / seconds,
        demand=demand,
        utilisation={part: time / seconds for part, time in busy.items()},
        bottleneck=bottleneck,
        most=1 / largest if largest else math.inf,
        knee=(sum(demand.values()) + think) / largest if largest else math.inf,
    )


def throughput_bound(laws: Laws, number: int, think: float = 0.0) -> float:
    """Requests a second at most with `number` of them at a time.

    Up to the knee each takes what it takes alone, all demands and `think`, so the rate grows with
    the number; behind it the bottleneck's limit holds. Where a turn takes no time at all, only that
    limit is left.
    """
    alone = sum(laws.demand.values()) + think
    return min(laws.most, number / alone) if alone else laws.most


# ---------------------------------------------------------------- latencies


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that `percent` of all are at most: the smallest with so many at or below it.

    It is one of the values, never a point between two: the one of rank `percent * count / 100`,
    rounded up. The values may come in any order, and stay as they are.

    Raises:
        ValueError: without values, and for a percent that is not above 0 and at most 100.
    """
    if not values or not 0 < percent <= 100:
        raise ValueError(
            f"percentile {percent} of {len(values)} values; give values, and 0 < p <= 100"
        )
    return sorted(values)[math.ceil(percent * len(values) / 100) - 1]


def bounds_from_buckets(
    bounds: Sequence[float], counts: Sequence[int], percent: float
) -> tuple[float, float]:
    """Between which two values the exact percentile lies, as a histogram tells.

    A number inside the bucket is a guess (see `metrics.percentile_from_buckets`); these two are
    not: above the first, and at most the second. A wide bucket is a wide answer, and the last one
    has no end. The first begins at 0. The rank is that of :func:`percentile`.

    Args:
        bounds: upper ends of the buckets, ascending; the last is infinity.
        counts: values in each bucket alone.

    Raises:
        ValueError: for a histogram without values or with another number of ends than of buckets,
            and for a percent that is not above 0 and at most 100.
    """
    total = sum(counts)
    if total == 0 or len(bounds) != len(counts) or not 0 < percent <= 100:
        raise ValueError(
            f"percentile {percent} of {total} values in {len(counts)} buckets with {len(bounds)} "
            "ends; give values, an end for each bucket, and 0 < p <= 100"
        )
    rank, seen, low = math.ceil(percent * total / 100), 0, 0.0
    for high, count in zip(bounds, counts, strict=True):
        seen += count
        if seen >= rank:
            return low, high
        low = high
    raise AssertionError("the counts add up to the total")


def with_omitted(latencies: Sequence[float], interval: float) -> list[float]:
    """Latencies with those that a client did not measure because it waited for an answer.

    A client that sends every `interval` seconds, and only after the last answer, stops measuring
    just while the service hangs: *coordinated omission*. A latency of 10 intervals hides 9 requests
    that would have waited 9, 8, ... 1 intervals; one of 2.5 intervals hides one of 1.5. The cure is
    to send on a schedule; where that was not done, this adds what is missing, behind those given.

    Raises:
        ValueError: for an interval that is not above 0.

    Source: Tene, HdrHistogram, `recordValueWithExpectedInterval`.
    """
    if interval <= 0:
        raise ValueError(f"interval is {interval} s; it must be above 0")
    found = list(latencies)
    for latency in latencies:
        missing = latency - interval
        while missing >= interval * (1 - 1e-9):
            found.append(missing)
            missing -= interval
    return found


def by_schedule(planned: Sequence[float], finished: Sequence[float]) -> list[float]:
    """Latencies from when each request should have been sent: as a user sees them, for whom a late
    client is part of the wait.

    Raises:
        ValueError: for times of different number.
    """
    return [end - start for start, end in zip(planned, finished, strict=True)]
