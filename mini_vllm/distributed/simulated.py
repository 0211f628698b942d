"""Ranks that are threads of one process: a group to learn with, and to test layers with.

Nothing is shared but what is exchanged, and it is exchanged in the same order on every run.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from mini_vllm.distributed.parallel_state import GroupCoordinator

R = TypeVar("R")


class Crowd:
    """Counts how many ranks of a run compute. When none does, no message will be sent any more, so
    every rank that waits would wait for ever. No clock is used, so a rank may be as slow as it
    likes.
    """

    def __init__(self, num_ranks: int) -> None:
        self.lock = threading.Condition()
        """Held by a rank that looks at, or changes, anything that ranks share."""
        self._num_busy = num_ranks

    def rest(self) -> None:
        """A rank has ended, or begins to wait."""
        self._num_busy -= 1
        if not self._num_busy:
            self.lock.notify_all()

    def wait(self, handover: Handover) -> bool:
        """Return when a message has been handed over: True. Or when it never will be: False."""
        if handover.is_over:
            return True
        handover.is_awaited = True
        self.rest()
        self.lock.wait_for(lambda: handover.is_over or not self._num_busy)
        if not handover.is_over:  # a rank that gives up is busy again
            handover.is_awaited = False
            self._num_busy += 1
        return handover.is_over

    def hand_over(self, handover: Handover) -> None:
        """The rank that waits for this is busy again."""
        handover.is_over = True
        if handover.is_awaited:
            self._num_busy += 1
            self.lock.notify_all()


@dataclass
class Handover:
    """Whether a message has been handed over, and whether a rank waits for that."""

    is_over: bool = False
    is_awaited: bool = False


class Channel:
    """Messages of one rank to one other, in order.

    A message is handed over when both sides have begun: then the receiver's tensor is a copy of
    the sender's. Neither side's work is done before, as on a network that stores nothing.
    """

    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd
        self._begun: tuple[deque[tuple[Tensor, Handover]], ...] = deque(), deque()
        """Receivers that wait for a sender, and senders that wait for a receiver."""

    def begin(self, x: Tensor, is_sent: bool, about: str) -> Message:
        """One side begins; ``about`` says what it waits for."""
        with self._crowd.lock:
            mine, theirs = self._begun[is_sent], self._begun[not is_sent]
            if not theirs:
                handover = Handover()
                mine.append((x, handover))
                return Message(self._crowd, handover, about)
            other, handover = theirs.popleft()
            source, target = (x, other) if is_sent else (other, x)
            if source.shape != target.shape:
                raise ValueError(
                    f"a message of shape {list(source.shape)} is received into a tensor of shape "
                    f"{list(target.shape)}; both must have one shape"
                )
            target.copy_(source)
            self._crowd.hand_over(handover)
        return Message(self._crowd, handover, about)


class Message:
    """One side of a message that has begun."""

    def __init__(self, crowd: Crowd, handover: Handover, about: str) -> None:
        self._crowd, self._handover, self._about = crowd, handover, about

    def wait(self) -> None:
        """Return when the message has been handed over.

        Raises:
            TimeoutError: if the other side never begins, for every rank waits or has ended.
        """
        with self._crowd.lock:
            if not self._crowd.wait(self._handover):
                raise TimeoutError(f"{self._about}; that never happens: every rank waits")


class SimulatedGroup(GroupCoordinator):
    """One rank's view of a group of threads.

    Args:
        channels: ``[source][destination]``, shared by all ranks.

    Attributes:
        num_exchanged: elements that this rank has handed to each kind of exchange, by name.
    """

    def __init__(self, rank: int, channels: Sequence[Sequence[Channel]]) -> None:
        super().__init__(range(len(channels)), rank)
        self.channels = channels
        self.num_exchanged: dict[str, int] = {"all_reduce": 0, "all_gather": 0, "all_to_all": 0}

    def isend(self, x: Tensor, dst: int) -> Message:
        about = f"rank {self.rank} waits until rank {dst} has received"
        return self.channels[self.rank][dst].begin(x, is_sent=True, about=about)

    def irecv(self, x: Tensor, src: int) -> Message:
        about = f"rank {self.rank} waits for a message from rank {src}"
        return self.channels[src][self.rank].begin(x, is_sent=False, about=about)

    def _exchange(self, x: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(x) for _ in self.ranks]
        begun = [self.irecv(part, other) for other, part in enumerate(parts)]
        begun += [self.isend(x, other) for other in self.ranks]
        for message in begun:
            message.wait()
        return parts

    def all_reduce(self, x: Tensor) -> Tensor:
        self.num_exchanged["all_reduce"] += x.numel()
        return torch.stack(self._exchange(x)).sum(0, dtype=x.dtype)

    def all_gather(self, x: Tensor, dim: int = -1) -> Tensor:
        self.num_exchanged["all_gather"] += x.numel()
        return torch.cat(self._exchange(x), dim)

    def all_to_all(self, x: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        self.num_exchanged["all_to_all"] += x.numel()
        parts = [x.new_empty(count, *x.shape[1:]) for count in received]
        begun = [self.irecv(part, other) for other, part in enumerate(parts)]
        begun += [self.isend(part, other) for other, part in enumerate(x.split(list(sent)))]
        for message in begun:
            message.wait()
        return torch.cat(parts)


class MessageGroup:
    """A group that can only send and receive, and counts what leaves.

    It is a :class:`~mini_vllm.distributed.collectives.Ring`.

    Attributes:
        sent: destination and elements of each message.
    """

    def __init__(self, group: SimulatedGroup) -> None:
        self.rank_in_group, self.world_size = group.rank_in_group, group.world_size
        self.sent: list[tuple[int, int]] = []
        self._group = group

    def isend(self, x: Tensor, dst: int) -> Message:
        self.sent.append((dst, x.numel()))
        return self._group.isend(x, dst)

    def irecv(self, x: Tensor, src: int) -> Message:
        return self._group.irecv(x, src)


def run_ranks(world_size: int, work: Callable[[SimulatedGroup], R]) -> list[R]:
    """Run ``work(group)`` on ``world_size`` ranks at once; what each returns, in order of rank.

    Raises:
        Exception: what a rank raised, the first in order of rank; a rank that only waited in vain
            for one that failed comes last.
    """
    crowd = Crowd(world_size)
    channels = [[Channel(crowd) for _ in range(world_size)] for _ in range(world_size)]
    results: list[Any] = [None] * world_size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            with torch.inference_mode():
                results[rank] = work(SimulatedGroup(rank, channels))
        except BaseException as error:
            errors.append(error)
        finally:
            with crowd.lock:
                crowd.rest()

    threads = [
        threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(world_size)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise min(errors, key=lambda error: isinstance(error, TimeoutError))
    return results


def run_messages(
    inputs: Sequence[Tensor], function: Callable[[Tensor, MessageGroup], Tensor]
) -> tuple[list[Tensor], list[list[tuple[int, int]]]]:
    """``function(inputs[rank], group)`` on all ranks, by messages alone.

    Returns:
        What each rank returns, and what each has sent.
    """

    def work(group: SimulatedGroup) -> tuple[Tensor, list[tuple[int, int]]]:
        messages = MessageGroup(group)
        return function(inputs[group.rank], messages), messages.sent

    results, sent = zip(*run_ranks(len(inputs), work), strict=True)
    return list(results), list(sent)


def interleave(look: Callable[[], object], function: Any, *args: Any) -> Any:
    """``function(*args)``, with ``look()`` before each line of its file that it runs.

    Another process may look at shared memory at any moment. Here ``look`` runs at each of them.
    """
    file, before = function.__code__.co_filename, sys.gettrace()

    def trace(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != file:
            return None
        if event in ("line", "return"):
            look()
        return trace

    sys.settrace(trace)
    try:
        return function(*args)
    finally:
        sys.settrace(before)
