"""Task 03.1: the two waiting lines."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.testing import expect
from mini_vllm.core.request_queue import FCFSRequestQueue, PriorityRequestQueue


def drain(queue: Any) -> list[str]:
    """Pop until the queue is empty."""
    return [queue.pop_request().request_id for _ in range(len(queue))]


def fcfs(chat: Any, *arrivals: str) -> FCFSRequestQueue:
    queue = FCFSRequestQueue()
    for name in arrivals:
        queue.add_request(chat.request(name, 3))
    return queue


def test_03_1_fcfs_serves_in_the_order_of_arrival(chat: Any) -> None:
    """FCFS: the request that came first is popped first, whatever the priority."""
    queue = FCFSRequestQueue()
    for name, priority in (("ana", 5), ("ben", 0), ("cleo", 1)):
        queue.add_request(chat.request(name, 3, priority=priority))
    expect(drain(queue), ["ana", "ben", "cleo"], at="ana, ben and cleo arrive in this order")


def test_03_1_fcfs_a_preempted_request_goes_to_the_front(chat: Any) -> None:
    """FCFS: a request that had a turn and lost it comes before all that wait."""
    queue = fcfs(chat, "ana", "ben")
    queue.prepend_request(chat.request("cleo", 3))
    at = "ana and ben wait; cleo is preempted and prepended"
    expect(drain(queue), ["cleo", "ana", "ben"], at=at)


def test_03_1_fcfs_prepending_several_puts_the_last_in_front(chat: Any) -> None:
    """FCFS: several are prepended one after the other, so the last of them comes first."""
    queue = fcfs(chat, "ana")
    queue.prepend_requests(chat.request(name, 3) for name in ("ben", "cleo"))
    at = "ana waits; ben, then cleo are prepended: each to the very front"
    expect(drain(queue), ["cleo", "ben", "ana"], at=at)


def test_03_1_fcfs_removing_keeps_the_order_of_the_others(chat: Any) -> None:
    """FCFS: clients go away in the middle of the line; strangers are ignored."""
    queue = FCFSRequestQueue()
    requests = [chat.request(name, 3) for name in ("ana", "ben", "cleo", "dan")]
    for request in requests:
        queue.add_request(request)
    queue.remove_requests(r for r in (requests[3], requests[1], chat.request("eva", 3)))
    at = "dan and ben go away, and eva, who is not in the line"
    expect(drain(queue), ["ana", "cleo"], at=at, waiting=["ana", "ben", "cleo", "dan"])


def test_03_1_priority_serves_the_smallest_number_first(chat: Any) -> None:
    """Priority: smallest (priority, arrival time, id) first, whatever the order of adding."""
    queue = PriorityRequestQueue()
    for name, priority, arrival in (
        ("dan", 2, 0.0), ("cleo", 1, 9.0), ("ben", 1, 3.0), ("eva", 5, 1.0), ("ana", 1, 3.0),
        ("finn", 0, 7.0), ("gil", 4, 2.0),
    ):  # fmt: skip
        queue.add_request(chat.request(name, 3, priority=priority, arrival=arrival))
    at = "finn has priority 0; ana, ben, cleo 1 (cleo came last); dan 2, gil 4, eva 5"
    expect(drain(queue), ["finn", "ana", "ben", "cleo", "dan", "gil", "eva"], at=at)


def test_03_1_priority_has_no_front_of_the_line(chat: Any) -> None:
    """Priority: a prepended request waits where its priority puts it."""
    queue = PriorityRequestQueue()
    for name, priority in (("ana", 1), ("ben", 3)):
        queue.add_request(chat.request(name, 3, priority=priority))
    queue.prepend_request(chat.request("cleo", 3, priority=2))
    at = "ana (1) and ben (3) wait; cleo (2) is preempted and comes back"
    expect(queue.peek_request().request_id, "ana", at=f"{at}: who is at the head?")
    queue.prepend_requests(chat.request(n, 3, priority=p) for n, p in (("dan", 4), ("eva", 0)))
    expect(drain(queue), ["eva", "ana", "cleo", "ben", "dan"], at=f"{at}; then dan (4), eva (0)")


def test_03_1_priority_removing_leaves_a_heap(chat: Any) -> None:
    """Priority: after a removal the head is still the smallest."""
    queue = PriorityRequestQueue()
    requests = [chat.request(f"p{p}", 3, priority=p) for p in (1, 5, 2, 6, 7, 3)]
    for request in requests:
        queue.add_request(request)
    queue.remove_requests(r for r in (requests[0], chat.request("stranger", 3)))
    at = "p1, the head, goes away, and with it the shape of the heap"
    expect(queue.peek_request().request_id, "p2", at=at, added=["p1", "p5", "p2", "p6", "p7", "p3"])
    expect(drain(queue), ["p2", "p3", "p5", "p6", "p7"], at=at)


@pytest.mark.parametrize("kind", [FCFSRequestQueue, PriorityRequestQueue])
def test_03_1_looking_takes_nothing_out(chat: Any, kind: Any) -> None:
    """Iterating shows the order of popping and changes nothing."""
    queue = kind()
    for name, priority in (("ana", 0), ("ben", 3), ("cleo", 1), ("dan", 2)):
        queue.add_request(chat.request(name, 3, priority=priority))
    seen, again = chat.names(queue), chat.names(queue)
    expect(again, seen, at="iterating a second time")
    expect(drain(queue), seen, at="iterating showed an order; popping must follow it")


@pytest.mark.parametrize("kind", [FCFSRequestQueue, PriorityRequestQueue])
def test_03_1_an_empty_queue_raises(chat: Any, kind: Any) -> None:
    """Popping from an empty queue is an IndexError, not None."""
    queue = kind()
    queue.add_request(chat.request("ana", 3))
    queue.pop_request()
    with pytest.raises(IndexError):
        queue.pop_request()
