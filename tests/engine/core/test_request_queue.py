"""The two waiting lines (R7)."""

from __future__ import annotations

import pytest

from mini_vllm.core.request_queue import (
    FCFSRequestQueue,
    PriorityRequestQueue,
    RequestQueue,
    create_request_queue,
)
from mini_vllm.request import Request
from tests.engine.core.build import ids, make_request


def some(*names_and_priorities: tuple[str, int]) -> list[Request]:
    """Requests that arrive in the order given."""
    return [
        make_request(name, 1, priority=priority, arrival=float(i))
        for i, (name, priority) in enumerate(names_and_priorities)
    ]


def filled(queue: RequestQueue, requests: list[Request]) -> RequestQueue:
    for request in requests:
        queue.add_request(request)
    return queue


def popped(queue: RequestQueue) -> list[str]:
    shown = ids(queue)
    order = [queue.pop_request().request_id for _ in range(len(queue))]
    assert order == shown, "iterating must show the order of popping"
    assert not queue
    return order


def test_r07_the_policy_chooses_the_queue() -> None:
    assert isinstance(create_request_queue("fcfs"), FCFSRequestQueue)
    assert isinstance(create_request_queue("priority"), PriorityRequestQueue)


def test_r07_fcfs_is_a_line_with_a_front_door() -> None:
    """a b c wait; x, then y, are put back in front: y x a b c."""
    a, b, c, x, y = some(("a", 9), ("b", 0), ("c", 5), ("x", 9), ("y", 9))
    queue = filled(FCFSRequestQueue(), [a, b, c])
    queue.prepend_request(x)
    queue.prepend_request(y)
    assert queue.peek_request() is y and len(queue) == 5
    assert popped(queue) == ["y", "x", "a", "b", "c"]


def test_r07_fcfs_prepend_requests_reverses() -> None:
    a, b, c = some(("a", 0), ("b", 0), ("c", 0))
    queue = filled(FCFSRequestQueue(), [a])
    queue.prepend_requests([b, c])
    assert popped(queue) == ["c", "b", "a"]


def test_r07_priority_is_a_heap_and_prepending_is_pushing() -> None:
    a, b, c, d, e = some(("a", 2), ("b", 0), ("c", 2), ("d", 1), ("e", 0))
    queue = filled(PriorityRequestQueue(), [c, a])
    queue.prepend_request(d)
    queue.prepend_requests([e, b])
    assert queue.peek_request() is b and len(queue) == 5
    assert popped(queue) == ["b", "e", "d", "a", "c"]


def test_iterating_takes_nothing_out() -> None:
    for queue in (FCFSRequestQueue(), PriorityRequestQueue()):
        filled(queue, some(("a", 1), ("b", 0)))
        assert ids(queue) == ids(queue) and len(queue) == 2


@pytest.mark.parametrize(
    ("policy", "left"), [("fcfs", ["a", "c", "e"]), ("priority", ["e", "c", "a"])]
)
def test_removing_from_the_middle(policy: str, left: list[str]) -> None:
    requests = some(("a", 4), ("b", 3), ("c", 2), ("d", 1), ("e", 0))
    queue = filled(create_request_queue(policy), requests)  # type: ignore[arg-type]
    stranger = make_request("z", 1)
    queue.remove_requests([requests[1], requests[3], stranger])
    assert popped(queue) == left


def test_removing_the_head_of_a_heap_leaves_a_heap() -> None:
    """Heap 0 5 1 6 7 2 3 without 0 and 1: the list that is left does not begin with 2."""
    requests = [make_request(str(p), 1, priority=p) for p in (0, 5, 1, 6, 7, 2, 3)]
    queue = filled(PriorityRequestQueue(), requests)
    queue.remove_requests([requests[0], requests[2]])
    assert popped(queue) == ["2", "3", "5", "6", "7"]


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_an_empty_queue_says_so(policy: str) -> None:
    queue = create_request_queue(policy)  # type: ignore[arg-type]
    assert len(queue) == 0 and not queue and list(queue) == []
    with pytest.raises(IndexError):
        queue.peek_request()
    with pytest.raises(IndexError):
        queue.pop_request()
