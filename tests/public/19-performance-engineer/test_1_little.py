"""Task 19.1: Little's law, and room for the requests that it counts."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.testing import expect
from mini_vllm.observability.capacity import Flow, blocks_for, little


def test_19_1_the_number_is_the_area_by_the_time(near: Any) -> None:
    """Three requests of 2, 4 and 6 s in 10 s: 12 seconds of stay, 1.2 at a time."""
    flow = little([(0.0, 2.0), (1.0, 5.0), (4.0, 10.0)], 10.0)
    near(flow.rate, 0.3, at="3 requests in 10 s: rate")
    near(flow.seconds, 4.0, at="stays of 2, 4 and 6 s: seconds")
    near(flow.number, 1.2, at="12 s of stay in 10 s: number")


def test_19_1_number_is_rate_times_seconds(near: Any) -> None:
    """The law itself, where the stays overlap and where they do not."""
    for stays in ([(0, 3), (0, 3), (0, 3)], [(0, 3), (3, 6), (6, 9)]):
        flow = little(stays, 12.0)
        near(flow.number, 0.75, at=f"stays {stays} in 12 s: number", rate=flow.rate)
        near(flow.number, flow.rate * flow.seconds, at=f"stays {stays}: rate times seconds")


def test_19_1_the_window_is_longer_than_the_stays(near: Any) -> None:
    """The window divides, not the time between the first arrival and the last answer."""
    flow = little([(2.0, 4.0)], 8.0)
    near(flow.rate, 0.125, at="1 request within 8 s: rate")
    near(flow.number, 0.25, at="a stay of 2 s within 8 s: number")


def test_19_1_a_quiet_window_is_a_flow_of_zeros() -> None:
    """No request has no average, and is no error."""
    expect(little([], 5.0), Flow(0.0, 0.0, 0.0), at="no request in 5 s")


def test_19_1_what_cannot_be_is_refused() -> None:
    """A window of no length, and a request that left before it had arrived."""
    for window in (0.0, -1.0):
        with pytest.raises(ValueError):
            little([(0.0, 1.0)], window)
    with pytest.raises(ValueError):
        little([(0.0, 1.0), (3.0, 2.0)], 5.0)


def test_19_1_half_of_the_last_block_is_empty() -> None:
    """100 tokens fill 6.25 blocks of 16: 6.75 with what is empty, for 4 requests twice: 54."""
    flow = Flow(2.0, 2.0, 4.0)
    expect(blocks_for(flow, 100, 16), 54, at="4 requests at a time, 100 tokens, blocks of 16")
    expect(blocks_for(flow, 100, 16, headroom=1.0), 27, at="the same without headroom")


def test_19_1_blocks_are_rounded_up_once() -> None:
    """1.5 requests of 6.75 blocks are 10.125: 11, not 2 times 7."""
    at = "1.5 requests at a time, 100 tokens, blocks of 16, no headroom"
    expect(blocks_for(Flow(1.0, 1.5, 1.5), 100, 16, 1.0), 11, at=at)
    expect(blocks_for(Flow(0.0, 0.0, 0.0), 100, 16), 0, at="a quiet flow needs none")


def test_19_1_blocks_of_no_token_are_refused() -> None:
    """Blocks of no token, and tokens or headroom below 0."""
    for size, tokens, headroom in ((0, 100, 2.0), (16, -1, 2.0), (16, 100, -2.0)):
        with pytest.raises(ValueError):
            blocks_for(Flow(1.0, 1.0, 1.0), tokens, size, headroom)
