"""Blocks that an engine holds for others, and for how long.

Source: vllm/distributed/kv_transfer/kv_connector/v1/nixl/scheduler.py#L586-L674
(NixlConnectorScheduler.request_finished) @ v0.22.1
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from mini_vllm.kv_transfer.wire import Question


@dataclass(slots=True)
class Lease:
    """One request's blocks.

    Attributes:
        name: given to the engine that may read them, and to no other.
        deadline: until when they are held, once the request has ended; None: it runs.
    """

    name: str
    block_ids: list[int]
    deadline: float | None = None


class Leases:
    """A table that the engine's thread writes and the server's thread reads, under one lock.

    Args:
        engine_id: of this engine.
        namespace: of its KV.
        duration: seconds from a request's end for which its blocks are held.
    """

    def __init__(self, engine_id: str, namespace: bytes, duration: float) -> None:
        self.engine_id, self.namespace, self.duration = engine_id, namespace, duration
        self.leases: dict[str, Lease] = {}
        """By request."""
        self.released: set[str] = set()
        """Requests whose blocks the reading engine does not need any more."""
        self._lock = threading.Lock()

    def update(
        self,
        promised: Mapping[str, tuple[str, list[int]]],
        kept: Collection[str],
        dropped: Collection[str],
    ) -> None:
        """What has become of requests since the last step.

        Args:
            promised: those that run, with the lease's name and their blocks so far.
            kept: those that have ended and keep their blocks.
            dropped: requests whose blocks may go to another request from this step on.
        """
        with self._lock:
            for request_id, (name, block_ids) in promised.items():
                self.leases[request_id] = Lease(name, block_ids)
            for request_id in dropped:
                self.leases.pop(request_id, None)
            for request_id in kept & self.leases.keys():
                self.leases[request_id].deadline = time.monotonic() + self.duration

    @contextmanager
    def reading(self, question: Question) -> Iterator[None]:
        """While the blocks that are asked for are read, they are not released.

        Raises:
            ValueError: if they are not held (any more), or for another engine.
        """
        with self._lock:
            self._check(question)
            yield

    def _check(self, question: Question) -> None:
        """Refuse a question about what is not held for the engine that asks.

        Refused are: another engine's id, for an address may have a new owner; another namespace; a
        request that has no lease, or a lease of another name, for ids come again; a lease whose
        deadline has come; a block that the request does not have. :meth:`reading` holds the lock
        already.

        Raises:
            ValueError: for a question that does not fit. Its text goes to the engine that asks, so
                it never says a lease's name: the name is the key.
        """
        # TODO 15.13
        raise NotImplementedError(
            "TODO 15.13: write Leases._check in labs/15-disaggregation/leases.py"
            " (phase 15, 02-mini-build.md#task-13)"
        )

    def release(self, question: Question) -> None:
        """A reader says that it needs a request's blocks no longer."""
        with self._lock:
            lease = self.leases.get(question.request_id)
            is_ours = question.engine_id == self.engine_id
            if lease is not None and lease.name == question.lease and is_ours:
                self.released.add(question.request_id)

    def take_ended(self, now: float) -> set[str]:
        """The ended requests whose lease is over: released by their reader, or at its deadline
        and after it (``now >= deadline``).

        They leave the table, so each is named once. One that has not ended yet stays, even if it
        was released. Questions come from another thread: all of it happens under ``self._lock``.
        """
        # TODO 15.13
        raise NotImplementedError(
            "TODO 15.13: write Leases.take_ended in labs/15-disaggregation/leases.py"
            " (phase 15, 02-mini-build.md#task-13)"
        )

    def clear(self) -> None:
        with self._lock:
            self.leases.clear()
            self.released.clear()
