"""Change request 5: a request with a penalty waits for its newest token."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.testing import expect
from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.extension import SchedulerExtension
from mini_vllm.core.scheduler import Scheduler


class Gate(SchedulerExtension):
    """Writes down which requests run whenever one asks to be admitted."""

    def __init__(self) -> None:
        self.seen: list[list[str]] = []

    def may_admit(self, request: Any, running: Any) -> bool:
        self.seen.append([other.request_id for other in running])
        return True


def late_scheduler(*extensions: SchedulerExtension, budget: int = 16) -> Scheduler:
    config = SchedulerConfig(budget, 4, 64, async_scheduling=True)
    return Scheduler(config, CacheConfig(4, 17), extensions, hash_root=b"root")


@pytest.mark.parametrize(
    "penalty",
    [{"repetition_penalty": 1.2}, {"presence_penalty": -0.5}, {"frequency_penalty": 1.0}],
    ids=["repetition", "presence", "frequency"],
)
def test_change_5_a_penalty_waits_for_the_answer(chat: Any, penalty: dict[str, float]) -> None:
    """Plan 2 comes before the answer to plan 1; plan 3 behind it."""
    scheduler = late_scheduler()
    scheduler.add_request(chat.request("ana", 3))
    scheduler.add_request(chat.request("ben", 3, **penalty))
    first = scheduler.schedule()
    expect(scheduler.schedule().num_scheduled_tokens, {"ana": 1}, at=f"plan 2; ben has {penalty}")
    scheduler.update_from_output(first, {"ana": [7], "ben": [8]})
    third = scheduler.schedule().num_scheduled_tokens
    expect(third, {"ana": 1, "ben": 1}, at="plan 3, behind the answer to plan 1")


def test_change_5_all_may_wait(chat: Any) -> None:
    """A plan without a token is no error: the answer is on its way."""
    scheduler = late_scheduler()
    scheduler.add_request(chat.request("ben", 3, repetition_penalty=1.2))
    first = scheduler.schedule()
    expect(scheduler.schedule().num_scheduled_tokens, {}, at="plan 2; only ben runs")
    scheduler.update_from_output(first, {"ben": [8]})
    expect(scheduler.schedule().num_scheduled_tokens, {"ben": 1}, at="plan 3")


def test_change_5_chunks_of_a_prompt_need_no_answer(chat: Any) -> None:
    """10 tokens in chunks of 4: three plans in a row, and then ben waits."""
    scheduler = late_scheduler(budget=4)
    scheduler.add_request(chat.request("ben", 10, repetition_penalty=1.2))
    plans = [scheduler.schedule().num_scheduled_tokens for _ in range(4)]
    expect(plans, [{"ben": 4}, {"ben": 4}, {"ben": 2}, {}], at="four plans, no answer")


def test_change_5_a_request_that_waits_still_runs(chat: Any) -> None:
    """An extension that counts running requests sees ben, which waits for its token."""
    gate = Gate()
    scheduler = late_scheduler(gate)
    scheduler.add_request(chat.request("ben", 3, repetition_penalty=1.2))
    scheduler.schedule()
    gate.seen.clear()
    scheduler.add_request(chat.request("cleo", 3))
    scheduler.schedule()
    expect(gate.seen, [["ben"]], at="cleo asks to be admitted: who runs")
