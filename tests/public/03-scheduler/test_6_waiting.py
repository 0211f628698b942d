"""Task 03.6: the waiting pass and its gates."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect
from mini_vllm.core.extension import SchedulerExtension
from mini_vllm.request import RequestStatus

REMOTE = RequestStatus.WAITING_FOR_REMOTE_KVS


class Ready(SchedulerExtension):
    """Says of the named requests that what they wait for has come."""

    def __init__(self, *names: str) -> None:
        self.names = set(names)

    def is_ready(self, request: Any) -> bool:
        return request.request_id in self.names


def queue_up(scheduler: Any, *requests: Any, blocked: str = "") -> None:
    """Add requests; those named in `blocked` wait for remote KV."""
    for request in requests:
        if request.request_id in blocked.split():
            request.transition_to(REMOTE)
        scheduler.add_request(request)


def test_03_6_admitted_in_order_until_the_rows_are_full(chat: Any) -> None:
    """max_num_seqs bounds the running requests, those that ran before included."""
    scheduler = chat.scheduler(rows=3)
    chat.start(scheduler, chat.request("zoe", 3), computed=3)
    queue_up(scheduler, *(chat.request(n, 2) for n in ("ana", "ben", "cleo")))
    step = chat.step(scheduler)
    scheduler._schedule_waiting(step)
    at = "3 rows, zoe runs already; ana, ben and cleo wait"
    expect(chat.names(scheduler.running), ["zoe", "ana", "ben"], at=at)
    expect(chat.names(scheduler.waiting), ["cleo"], at=at)


def test_03_6_the_budget_ends_the_pass(chat: Any) -> None:
    """The last one admitted gets a chunk; a request behind it waits."""
    scheduler = chat.scheduler(budget=8)
    queue_up(scheduler, *(chat.request(n, 6) for n in ("ana", "ben", "cleo")))
    step = chat.step(scheduler)
    scheduler._schedule_waiting(step)
    at = "three prompts of 6 tokens, budget 8"
    expect(step.num_scheduled_tokens, {"ana": 6, "ben": 2}, at=at)
    expect(chat.names(scheduler.waiting), ["cleo"], at=at)


def test_03_6_a_request_that_lacks_blocks_is_not_overtaken(chat: Any) -> None:
    """The head lacks blocks: the pass ends, though a smaller request behind it would fit."""
    scheduler = chat.scheduler(blocks=4)
    chat.start(scheduler, chat.request("zoe", 8), computed=8)
    queue_up(scheduler, chat.request("ana", 12), chat.request("ben", 2))
    step = chat.step(scheduler)
    scheduler._schedule_waiting(step)
    at = "2 of 4 blocks are free; ana needs 3, ben behind her 1"
    expect(step.num_scheduled_tokens, {}, at=at)
    expect(chat.names(scheduler.waiting), ["ana", "ben"], at=f"{at}: the line afterwards")
    expect(chat.names(scheduler.running), ["zoe"], at=f"{at}: none is preempted for a new one")


def test_03_6_a_blocked_request_is_set_aside(chat: Any) -> None:
    """A request that waits for remote KV hinders no request behind it, and is not forgotten."""
    scheduler = chat.scheduler()
    queue_up(scheduler, *(chat.request(n, 2) for n in ("ana", "ben", "cleo")), blocked="ana")
    step = chat.step(scheduler)
    scheduler._schedule_waiting(step)
    at = "ana waits for remote KV; ben and cleo are ready"
    expect(chat.names(scheduler.running), ["ben", "cleo"], at=at)
    expect(chat.names(scheduler.skipped_waiting), ["ana"], at=f"{at}: who was skipped?")


def test_03_6_two_skipped_requests_keep_their_order(chat: Any) -> None:
    """FCFS: two are skipped in one step; the one that came first is asked first in the next."""
    scheduler = chat.scheduler()
    queue_up(scheduler, *(chat.request(n, 2) for n in ("ana", "ben", "cleo")), blocked="ana ben")
    step = chat.step(scheduler)
    scheduler._schedule_waiting(step)
    at = "ana and ben wait for remote KV, cleo is ready: the skipped line"
    expect(chat.names(scheduler.skipped_waiting), ["ana", "ben"], at=at)


def test_03_6_those_skipped_now_stand_before_older_ones(chat: Any) -> None:
    """FCFS: a request skipped in this step is asked before those that this step never reached."""
    scheduler = chat.scheduler(rows=1, extensions=[Ready("ben")])
    requests = [chat.request(name, 2) for name in ("ana", "ben", "cleo")]
    queue_up(scheduler, *requests, blocked="ana ben cleo")
    step = chat.step(scheduler)
    scheduler._schedule_waiting(step)
    at = "one row; ana is not ready, ben is, cleo is never asked"
    expect(chat.names(scheduler.running), ["ben"], at=at)
    expect(chat.names(scheduler.skipped_waiting), ["ana", "cleo"], at=f"{at}: the skipped line")


def test_03_6_fcfs_skipped_requests_have_the_first_turn(chat: Any) -> None:
    """FCFS: a request that was set aside came earlier, so that queue goes first."""
    scheduler = chat.scheduler()
    queue_up(scheduler, chat.request("ana", 2), chat.request("ben", 2), blocked="ana")
    at = "ana stands in skipped_waiting, ben in waiting"
    expect(scheduler._next_queue() is scheduler.skipped_waiting, True, at=f"{at}: skipped first?")
    scheduler.skipped_waiting.pop_request()
    expect(scheduler._next_queue() is scheduler.waiting, True, at="only ben is left, in waiting")
    scheduler.waiting.pop_request()
    expect(scheduler._next_queue() is None, True, at="no request waits: there is no queue to ask")


def test_03_6_priority_the_smaller_head_has_its_turn(chat: Any) -> None:
    """Priority: compare the heads of both queues; if neither is smaller, skipped goes first."""
    for skipped, ready, expected in ((3, 1, "waiting"), (1, 3, "skipped_waiting")):
        scheduler = chat.scheduler(policy="priority")
        ana = chat.request("ana", 2, priority=skipped)
        queue_up(scheduler, ana, chat.request("ben", 2, priority=ready), blocked="ana")
        at = f"ana ({skipped}) was skipped, ben ({ready}) waits: whose turn is it?"
        yours = "waiting" if scheduler._next_queue() is scheduler.waiting else "skipped_waiting"
        expect(yours, expected, at=at)


def test_03_6_a_request_that_can_never_fit_ends_and_the_next_is_served(chat: Any) -> None:
    """A prompt larger than the whole pool must not block the line for ever."""
    scheduler = chat.scheduler(blocks=4)
    ana = chat.request("ana", 20)
    queue_up(scheduler, ana, chat.request("ben", 3))
    step = chat.step(scheduler)
    scheduler._schedule_waiting(step)
    at = "4 blocks are 16 tokens; ana's prompt has 20; ben waits behind her"
    expect(ana.status, RequestStatus.FINISHED_LENGTH_CAPPED, at=at)
    expect(chat.names(scheduler.running), ["ben"], at=at)
