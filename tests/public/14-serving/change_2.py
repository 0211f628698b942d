"""Change request 2: a request that has not begun when a shutdown begins is answered at once."""

from __future__ import annotations

from labkit.inside.serving.small_engine import shut_down_after
from labkit.testing import expect


def test_change_2_waiting_requests_are_answered_first() -> None:
    """Two rows: ana and ben run to their end, cleo and dora are told before."""
    ends, tokens = shut_down_after({"ana": 5, "ben": 6, "cleo": 3, "dora": 3}, 2, 1, 60.0)
    expect(
        ends,
        [("cleo", "abort"), ("dora", "abort"), ("ana", "length"), ("ben", "length")],
        at="after one step, SHUTDOWN with 60 seconds",
    )
    expect(tokens, {"ana": 5, "ben": 6, "cleo": 0, "dora": 0}, at="tokens")


def test_change_2_all_run() -> None:
    """Three rows for three requests: none waits, nothing changes."""
    ends, _ = shut_down_after({"ana": 2, "ben": 3, "cleo": 4}, 3, 1, 60.0)
    expect(ends, [("ana", "length"), ("ben", "length"), ("cleo", "length")], at="three rows")


def test_change_2_no_time_is_as_before() -> None:
    """With 0 seconds all are aborted, each of them once."""
    ends, _ = shut_down_after({"ana": 5, "ben": 6, "cleo": 3}, 2, 1, 0.0)
    expect(sorted(ends), [(name, "abort") for name in ("ana", "ben", "cleo")], at="0 seconds")
