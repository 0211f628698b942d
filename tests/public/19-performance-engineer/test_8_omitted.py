"""Task 19.8: the latencies that a client omits because it waits."""

from __future__ import annotations

import pytest

from labkit.testing import expect
from mini_vllm.observability.capacity import by_schedule, percentile, with_omitted


def rounded(values: list[float]) -> list[float]:
    """To nine digits, for sums of fractions."""
    return [round(value, 9) for value in values]


def test_19_8_a_long_wait_hides_the_requests_behind_it() -> None:
    """5 intervals: requests that would have waited 4, 3, 2 and 1 were not sent."""
    got = rounded(with_omitted([1.0, 5.0], 1.0))
    expect(sorted(got), [1.0, 1.0, 2.0, 3.0, 4.0, 5.0], at="latencies 1 and 5, one a second")


def test_19_8_short_ones_hide_none() -> None:
    """Below one interval, at one interval, and below two: nothing was due, or it hardly waited."""
    given = [0.2, 1.0, 1.9]
    expect(with_omitted(given, 1.0), given, at="latencies 0.2, 1 and 1.9, one a second")


def test_19_8_a_wait_between_two_intervals() -> None:
    """3.5 hides requests of 2.5 and 1.5; one of 0.5 would have been shorter than an interval."""
    got = rounded(with_omitted([3.5], 1.0))
    expect(sorted(got), [1.5, 2.5, 3.5], at="a latency of 3.5, one a second")


def test_19_8_what_was_measured_comes_first() -> None:
    """What was measured comes first, in its order; the list that was given stays as it was."""
    given = [3.0, 0.5, 2.0]
    expect(rounded(with_omitted(given, 1.0))[:3], [3.0, 0.5, 2.0], at="latencies 3, 0.5, 2: begin")
    expect(given, [3.0, 0.5, 2.0], at="the latencies afterwards")


def test_19_8_intervals_that_are_no_round_numbers() -> None:
    """1 s in tenths: nine are missing, whatever 0.1 is in binary."""
    expect(len(with_omitted([1.0], 0.1)), 10, at="a latency of 1 s, ten a second: latencies")
    expect(len(with_omitted([0.3], 0.1)), 3, at="a latency of 0.3 s, ten a second: latencies")


def test_19_8_the_p99_of_a_service_that_hung() -> None:
    """99 answers in 10 ms, then one after 10 s, one every 0.1 s: the client saw no harm."""
    seen = [0.01] * 99 + [10.0]
    expect(percentile(seen, 99), 0.01, at="p99 of what was measured")
    expect(round(percentile(with_omitted(seen, 0.1), 99), 6), 9.9, at="p99 with what was omitted")


def test_19_8_an_interval_of_nothing_is_refused() -> None:
    """An interval of 0 is refused: it would hide endlessly many requests."""
    for interval in (0.0, -1.0):
        with pytest.raises(ValueError):
            with_omitted([1.0], interval)


def test_19_8_a_schedule_counts_from_when_a_request_was_due() -> None:
    """The service hung for 3 s; the request that was due at 1 s was sent at 3 s."""
    expect(by_schedule([0.0, 1.0, 4.0], [3.0, 3.5, 4.5]), [3.0, 2.5, 0.5], at="latencies")


def test_19_8_every_request_has_both_times() -> None:
    """One that has not finished is not dropped in silence."""
    with pytest.raises(ValueError):
        by_schedule([0.0, 1.0], [1.0])
