"""Ranks that are threads of one process: a group to learn with, and to test layers with.

Nothing is shared but what is exchanged, and it is exchanged in the same order on every run.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from mini_vllm.distributed.parallel_state import GroupCoordinator

WAIT_SECONDS = 20.0
"""How long a rank waits for another before the run is given up: nobody sends any more."""
R = TypeVar("R")


class Sent:
    """A message that has been put away, or will be taken: ``wait()`` for it."""

    def __init__(self, finish: Callable[[], None] = lambda: None) -> None:
        self.wait = finish


class SimulatedGroup(GroupCoordinator):
    """One rank's view of a group of threads.

    Args:
        mailboxes: ``[source][destination]``, shared by all ranks.

    Attributes:
        num_exchanged: elements that this rank has handed to all_reduce and all_gather, by name.
    """

    def __init__(self, rank: int, mailboxes: list[list[queue.Queue[Tensor]]]) -> None:
        super().__init__(range(len(mailboxes)), rank)
        self.mailboxes = mailboxes
        self.num_exchanged: dict[str, int] = {"all_reduce": 0, "all_gather": 0}

    def isend(self, x: Tensor, dst: int) -> Sent:
        self.mailboxes[self.rank][dst].put(x.clone())
        return Sent()

    def irecv(self, x: Tensor, src: int) -> Sent:
        return Sent(lambda: x.copy_(self._take(src)))  # type: ignore[arg-type, return-value]

    def _take(self, src: int) -> Tensor:
        try:
            return self.mailboxes[src][self.rank].get(timeout=WAIT_SECONDS)
        except queue.Empty:
            raise TimeoutError(
                f"rank {self.rank} waits for a message from rank {src}, who sends none"
            ) from None

    def _exchange(self, x: Tensor) -> list[Tensor]:
        for other in self.ranks:
            self.isend(x, other)
        return [self._take(other) for other in self.ranks]

    def all_reduce(self, x: Tensor) -> Tensor:
        self.num_exchanged["all_reduce"] += x.numel()
        return torch.stack(self._exchange(x)).sum(0, dtype=x.dtype)

    def all_gather(self, x: Tensor, dim: int = -1) -> Tensor:
        self.num_exchanged["all_gather"] += x.numel()
        return torch.cat(self._exchange(x), dim)

    def broadcast(self, x: Tensor, src: int = 0) -> Tensor:
        return self._exchange(x)[src]

    def barrier(self) -> None:
        self._exchange(torch.zeros(0))


def run_ranks(world_size: int, work: Callable[[SimulatedGroup], R]) -> list[R]:
    """Run ``work(group)`` on ``world_size`` ranks at once; what each returns, in order of rank.

    Raises:
        Exception: what a rank raised, the first in order of rank.
    """
    mailboxes: list[list[queue.Queue[Tensor]]] = [
        [queue.Queue() for _ in range(world_size)] for _ in range(world_size)
    ]
    results: list[Any] = [None] * world_size
    errors: list[BaseException | None] = [None] * world_size

    def run(rank: int) -> None:
        try:
            with torch.inference_mode():
                results[rank] = work(SimulatedGroup(rank, mailboxes))
        except BaseException as error:
            errors[rank] = error

    threads = [
        threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(world_size)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        if error is not None:
            raise error
    return results
