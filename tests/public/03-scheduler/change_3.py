"""Change request 3: the cap on one request's tokens depends on how many requests there are."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.testing import expect


@pytest.mark.parametrize(("others", "tokens"), [(0, 16), (1, 8), (3, 4), (7, 4)])
def test_change_3_a_running_prompt(chat: Any, others: int, tokens: int) -> None:
    """Budget 16, threshold 4; ana has 20 tokens to go."""
    scheduler = chat.scheduler(blocks=60, budget=16, rows=10, threshold=4)
    for index in range(others + 1):
        chat.start(scheduler, chat.request(f"r{index}", 30), computed=1)
    at = f"20 tokens wanted, {others} others"
    expect(scheduler._clamp_new_tokens(20, 1, 16), tokens, at=at)


@pytest.mark.parametrize(("others", "tokens"), [(0, 16), (1, 8)])
def test_change_3_a_prompt_that_is_admitted(chat: Any, others: int, tokens: int) -> None:
    """The same for one that comes from the waiting line; waiting requests count as well."""
    scheduler = chat.scheduler(blocks=60, budget=16, rows=10, threshold=4)
    for index in range(others + 1):
        scheduler.add_request(chat.request(f"r{index}", 30))
    scheduled = scheduler.schedule().num_scheduled_tokens
    expect(scheduled["r0"], tokens, at=f"the first of {others + 1} prompts of 30 tokens")


def test_change_3_no_threshold_no_cap(chat: Any) -> None:
    """A threshold of 0 means no cap, as before."""
    scheduler = chat.scheduler(blocks=60, budget=16, rows=10, threshold=0)
    for index in range(4):
        chat.start(scheduler, chat.request(f"r{index}", 30), computed=1)
    expect(scheduler._clamp_new_tokens(20, 1, 16), 16, at="threshold 0, four requests")
