"""Change request 4: a victim from before the position moves it, in the plan or not."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect
from mini_vllm.core.extension import SchedulerExtension


class Lacks(SchedulerExtension):
    """Lets some requests have no tokens in this step."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def limit_tokens(self, request: Any, num_computed_tokens: int, num_new_tokens: int) -> int:
        return 0 if request.request_id in self.names else num_new_tokens


def full(chat: Any, *lacking: str, computed: int = 8) -> Any:
    """Four blocks, all held: ana (the worst priority) two, ben and cleo one each."""
    scheduler = chat.scheduler(policy="priority", blocks=4, extensions=[Lacks(*lacking)])
    for name, priority, tokens in (("ana", 9, computed), ("ben", 0, 4), ("cleo", 1, 3)):
        request = chat.request(name, tokens, priority=priority)
        chat.start(scheduler, request, computed=tokens, output=1)
    return scheduler


def test_change_4_the_next_is_not_passed_over(chat: Any) -> None:
    """ana gets no tokens, ben needs a block and takes hers; cleo is next."""
    scheduler = full(chat, "ana")
    step = chat.step(scheduler)
    scheduler._schedule_running(step)
    expect(step.num_scheduled_tokens, {"ben": 1, "cleo": 1}, at="ana gets no tokens, and goes")
    expect(chat.names(scheduler.running), ["ben", "cleo"], at="who runs")


def test_change_4_a_victim_in_the_plan_still_leaves_it(chat: Any) -> None:
    """ana has her token already when ben needs a block."""
    scheduler = full(chat, computed=7)  # her next token has its slot
    step = chat.step(scheduler)
    scheduler._schedule_running(step)
    expect(step.num_scheduled_tokens, {"ben": 1, "cleo": 1}, at="ana was in the plan, and goes")
