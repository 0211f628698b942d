"""The waiting queue: first come first served, or by priority.

Source: vllm/v1/core/sched/request_queue.py#L13-L208 (RequestQueue) @ v0.22.1
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Protocol

from mini_vllm.config import Policy
from mini_vllm.request import Request


class RequestQueue(Protocol):
    """What the scheduler asks of a queue. Iterating shows the order in which it would pop."""

    def add_request(self, request: Request) -> None:
        """Queue a request that has just arrived."""

    def peek_request(self) -> Request:
        """The next request; IndexError if the queue is empty."""

    def pop_request(self) -> Request:
        """Take that request out; IndexError if the queue is empty."""

    def prepend_request(self, request: Request) -> None:
        """Put back a request that was taken out before (it was preempted, or skipped)."""

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """Prepend several, one after the other, so that the last of them comes first."""

    def remove_requests(self, requests: Iterable[Request]) -> None:
        """Take requests out of the middle; those that are not in the queue are ignored."""

    def __iter__(self) -> Iterator[Request]: ...

    def __len__(self) -> int: ...


class FCFSRequestQueue:
    """First come, first served: a deque.

    Source: vllm/v1/core/sched/request_queue.py#L75-L128 (FCFSRequestQueue) @ v0.22.1
    """

    def __init__(self) -> None:
        self._queue: deque[Request] = deque()

    def add_request(self, request: Request) -> None:
        """Append at the end."""
        self._queue.append(request)

    def peek_request(self) -> Request:
        """The request at the front."""
        return self._queue[0]

    def pop_request(self) -> Request:
        """Take the request at the front."""
        return self._queue.popleft()

    def prepend_request(self, request: Request) -> None:
        """Put at the front: a preempted request has waited longest."""
        self._queue.appendleft(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """Prepend one after the other, which reverses their order."""
        self._queue.extendleft(requests)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        """Keep the order of the others."""
        gone = set(requests)
        self._queue = deque(request for request in self._queue if request not in gone)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._queue)

    def __len__(self) -> int:
        return len(self._queue)


class PriorityRequestQueue:
    """Smallest ``(priority, arrival_time, request_id)`` first: a heap.

    A preempted request does not go back to the front: it waits where its priority puts it.

    Source: vllm/v1/core/sched/request_queue.py#L131-L198 (PriorityRequestQueue) @ v0.22.1
    """

    def __init__(self) -> None:
        self._heap: list[Request] = []

    def add_request(self, request: Request) -> None:
        """Push onto the heap; ``Request.__lt__`` gives the order."""
        heapq.heappush(self._heap, request)

    def peek_request(self) -> Request:
        """The smallest request."""
        return self._heap[0]

    def pop_request(self) -> Request:
        """Take the smallest request."""
        return heapq.heappop(self._heap)

    def prepend_request(self, request: Request) -> None:
        """The same as :meth:`add_request`."""
        self.add_request(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """The same as :meth:`add_request`, for each."""
        for request in requests:
            self.add_request(request)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        """Rebuild the heap from the other requests."""
        gone = set(requests)
        self._heap = [request for request in self._heap if request not in gone]
        heapq.heapify(self._heap)

    def __iter__(self) -> Iterator[Request]:
        return iter(sorted(self._heap))

    def __len__(self) -> int:
        return len(self._heap)


def create_request_queue(policy: Policy) -> RequestQueue:
    """An empty queue of the kind that ``policy`` ("fcfs" or "priority") asks for."""
    return PriorityRequestQueue() if policy == "priority" else FCFSRequestQueue()
