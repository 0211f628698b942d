"""Task 03.3: the victim, and what becomes of it."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect
from mini_vllm.request import RequestStatus


def running(chat: Any, policy: str, *requests: tuple[str, int, float]) -> Any:
    """A scheduler in which (name, priority, arrival) run, one block each."""
    scheduler = chat.scheduler(policy=policy)
    for name, priority, arrival in requests:
        request = chat.request(name, 3, priority=priority, arrival=arrival)
        chat.start(scheduler, request, computed=3)
    return scheduler


def test_03_3_fcfs_the_victim_is_the_last_one_admitted(chat: Any) -> None:
    """FCFS: the tail of `running` goes; priority and arrival time play no part."""
    scheduler = running(chat, "fcfs", ("ana", 9, 9.0), ("ben", 5, 1.0), ("cleo", 0, 5.0))
    at = "running, in order of admission: ana, ben, cleo"
    expect(scheduler._pick_victim().request_id, "cleo", at=at)
    expect(chat.names(scheduler.running), ["ana", "ben", "cleo"], at="picked, and not yet taken")


def test_03_3_priority_the_victim_is_the_least_urgent(chat: Any) -> None:
    """Priority: the largest number goes, wherever it stands in `running`."""
    scheduler = running(chat, "priority", ("ana", 1, 0.0), ("ben", 7, 1.0), ("cleo", 3, 2.0))
    at = "ana (priority 1), ben (7) and cleo (3) run; smaller is more urgent"
    expect(scheduler._pick_victim().request_id, "ben", at=at)


def test_03_3_priority_among_equals_the_latest_arrival(chat: Any) -> None:
    """Priority: among equal priorities the one that arrived last goes."""
    scheduler = running(chat, "priority", ("ana", 2, 1.0), ("ben", 2, 8.0), ("cleo", 2, 3.0))
    at = "all have priority 2; ana arrived at 1.0, ben at 8.0, cleo at 3.0"
    expect(scheduler._pick_victim().request_id, "ben", at=at)


def test_03_3_priority_full_ties_take_the_first(chat: Any) -> None:
    """Priority: if priority and arrival are equal too, the first of them in `running` goes."""
    scheduler = running(chat, "priority", ("ana", 1, 0.0), ("ben", 2, 5.0), ("cleo", 2, 5.0))
    at = "ben and cleo have the same priority and arrival; ben stands first in running"
    expect(scheduler._pick_victim().request_id, "ben", at=at)


def test_03_3_the_blocks_are_free_at_once(chat: Any) -> None:
    """A preempted request holds nothing: its blocks serve others in this very step."""
    scheduler = chat.scheduler(blocks=5)
    ana = chat.start(scheduler, chat.request("ana", 9), computed=9)
    chat.start(scheduler, chat.request("ben", 3), computed=3)
    scheduler._preempt(ana)
    expect(chat.table(scheduler, "ana"), [], at="ana held 3 of 5 blocks and is preempted")
    free = scheduler.kv_cache_manager.num_free_blocks
    expect(free, 4, at="free blocks afterwards: ben holds 1 of 5")
    expect(chat.names(scheduler.running), ["ben"], at="ana, who stood first, leaves `running`")


def test_03_3_it_keeps_its_output_and_loses_its_progress(chat: Any) -> None:
    """The client has the output already; keys and values are gone, so nothing is computed."""
    scheduler = chat.scheduler()
    ana = chat.start(scheduler, chat.request("ana", 5), computed=7, output=3)
    ana.spec_token_ids = [1, 2]
    scheduler._preempt(ana)
    expect(ana.output_token_ids, [7000, 7001, 7002], at="ana had 3 tokens of output")
    expect(ana.num_tokens, 8, at="prompt and output of ana: 5 + 3")
    expect(ana.num_computed_tokens, 0, at="tokens of ana whose keys and values are still there")
    expect(ana.spec_token_ids, [], at="drafts of ana: guesses for a step that never comes")


def test_03_3_it_is_marked_and_counted(chat: Any) -> None:
    """Status PREEMPTED, and one more preemption."""
    scheduler = chat.scheduler()
    ana = chat.start(scheduler, chat.request("ana", 5), computed=5)
    ana.num_preemptions = 2
    scheduler._preempt(ana)
    expect(ana.status, RequestStatus.PREEMPTED, at="ana is preempted")
    expect(ana.num_preemptions, 3, at="ana is preempted for the third time")


def test_03_3_it_waits_at_the_front(chat: Any) -> None:
    """FCFS: ahead of requests that have never run, so several victims keep their order."""
    scheduler = chat.scheduler()
    ana = chat.start(scheduler, chat.request("ana", 3), computed=3)
    ben = chat.start(scheduler, chat.request("ben", 3), computed=3)
    scheduler.add_request(chat.request("cleo", 3))
    scheduler._preempt(ben)
    scheduler._preempt(ana)
    at = "cleo has never run; ben, then ana are preempted"
    expect(chat.names(scheduler.waiting), ["ana", "ben", "cleo"], at=at)
