"""Change request 2: the last row is kept for the urgent."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect


def busy(chat: Any, rows: int, policy: str = "fcfs") -> Any:
    """A scheduler with all rows but one taken."""
    scheduler = chat.scheduler(policy=policy, rows=rows, blocks=60)
    for name in ("ana", "ben", "cleo")[: rows - 1]:
        chat.start(scheduler, chat.request(name, 4), computed=3)
    return scheduler


def test_change_2_the_public_waits_for_the_last_row(chat: Any) -> None:
    """Two of three rows are taken; a request of priority 0 is not admitted."""
    scheduler = busy(chat, 3)
    scheduler.add_request(chat.request("dora", 2))
    plan = scheduler.schedule()
    expect("dora" in plan.num_scheduled_tokens, False, at="one row is free, dora has priority 0")


def test_change_2_the_urgent_takes_it(chat: Any) -> None:
    """An urgent request behind it is admitted in the same step."""
    scheduler = busy(chat, 3)
    scheduler.add_request(chat.request("dora", 2))
    scheduler.add_request(chat.request("ops", 2, priority=-1))
    plan = scheduler.schedule()
    expect("ops" in plan.num_scheduled_tokens, True, at="dora (0) waits in front of ops (-1)")


def test_change_2_a_single_row_is_not_kept_free(chat: Any) -> None:
    """With a single row there is nothing to keep."""
    scheduler = chat.scheduler(rows=1)
    scheduler.add_request(chat.request("dora", 2))
    expect(list(scheduler.schedule().num_scheduled_tokens), ["dora"], at="max_num_seqs is 1")
