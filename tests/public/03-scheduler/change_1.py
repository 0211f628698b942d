"""Change request 1: under "fcfs" the victim is the request that loses least work."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect


def running(chat: Any, policy: str, *computed: int) -> Any:
    scheduler = chat.scheduler(policy=policy, blocks=60)
    for name, tokens in zip(("ana", "ben", "cleo"), computed, strict=True):
        chat.start(scheduler, chat.request(name, tokens + 1), computed=tokens)
    return scheduler


def test_change_1_the_one_with_the_fewest_computed_tokens(chat: Any) -> None:
    """FCFS: 9, 2 and 5 tokens are computed; the one with 2 goes."""
    scheduler = running(chat, "fcfs", 9, 2, 5)
    expect(scheduler._pick_victim().request_id, "ben", at="ana has 9 computed, ben 2, cleo 5")


def test_change_1_among_equals_the_last_admitted(chat: Any) -> None:
    """FCFS: equal losses; the one admitted last goes."""
    scheduler = running(chat, "fcfs", 4, 4, 4)
    expect(scheduler._pick_victim().request_id, "cleo", at="all have 4 computed tokens")


def test_change_1_priority_is_as_before(chat: Any) -> None:
    """Priority: the largest number goes, whatever it loses."""
    scheduler = chat.scheduler(policy="priority", blocks=60)
    for name, priority, tokens in (("ana", 5, 9), ("ben", 0, 2)):
        request = chat.request(name, tokens + 1, priority=priority)
        chat.start(scheduler, request, computed=tokens)
    expect(
        scheduler._pick_victim().request_id, "ana", at="ana (priority 5, 9 computed), ben (0, 2)"
    )
