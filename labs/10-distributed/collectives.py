"""What an exchange costs, and how one is made of messages between two.

The engine uses torch's (gloo, NCCL), which do the same in C++. Here it can be read.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import torch
from torch import Tensor


class Ring(Protocol):
    """What :func:`ring_all_reduce` needs of a group: places, and messages between two of them.

    :class:`~mini_vllm.distributed.parallel_state.GroupCoordinator` is one.
    """

    @property
    def rank_in_group(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    def isend(self, x: Tensor, dst: int) -> Any: ...

    def irecv(self, x: Tensor, src: int) -> Any: ...


def ring_all_reduce(x: Tensor, group: Ring) -> Tensor:
    """The sum of all ranks' ``x``, a new tensor, by messages to the next rank only.

    The tensor is cut into p chunks of equal length, the end padded with zeros. Then, with all
    ranks at once:

    1. p - 1 times, send one chunk to the next rank, and add what the previous one sends to
       yours: after it, rank r holds the whole sum of chunk ``r + 1``.
    2. p - 1 times, send the newest finished chunk on, and take over what comes.

    ::

        p = 3         step 0: rank 0 sends chunk 0, rank 1 chunk 1, rank 2 chunk 2
                      step 1: each sends on what it has just added up

    Both directions are begun before either is waited for: if all sent first, and waited, none
    would receive. Any shape, dtype and device, also fewer elements than ranks. Chunks are added up
    and sent in the dtype of ``x``, which the sum has, too. ``x`` is not changed.
    """
    # TODO 10.1
    raise NotImplementedError(
        "TODO 10.1: write ring_all_reduce in labs/10-distributed/collectives.py"
        " (phase 10, 02-mini-build.md#task-1)"
    )


def ring_time(num_bytes: float, p: int, alpha: float, beta: float) -> float:
    """Seconds of a ring all-reduce: ``2 (p - 1)`` messages, each of one p-th of the bytes.

    Args:
        num_bytes: of the tensor that every rank has.
        p: ranks.
        alpha: seconds that any message takes, however short.
        beta: seconds a byte; 1 / bandwidth.
    """
    # TODO 10.2
    raise NotImplementedError(
        "TODO 10.2: write ring_time in labs/10-distributed/collectives.py"
        " (phase 10, 02-mini-build.md#task-2)"
    )


def tree_time(num_bytes: float, p: int, alpha: float, beta: float) -> float:
    """Seconds of an all-reduce up a binary tree and down again: all bytes, ``2 log2(p)`` times.

    Half a level is a whole level: ``log2`` is rounded up.
    """
    return 2 * math.ceil(math.log2(p)) * (alpha + num_bytes * beta)


def one_shot_time(num_bytes: float, p: int, alpha: float, beta: float) -> float:
    """Seconds if every rank sends all its bytes to all others at once, and adds what comes.

    One message's latency, but each link carries ``p - 1`` tensors. Alone there is no message.
    """
    # TODO 10.2
    raise NotImplementedError(
        "TODO 10.2: write one_shot_time in labs/10-distributed/collectives.py"
        " (phase 10, 02-mini-build.md#task-2)"
    )
