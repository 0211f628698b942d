"""The ranks of one engine, and the groups in which they exchange data.

::

    tensor_parallel_size=2, pipeline_parallel_size=2          rank   0   1   2   3

    TP groups   ranks with the same layers                          [0   1] [2   3]
    PP groups   ranks with the same shard, stage after stage        [0   2] [1   3]

Ranks of a TP group are neighbours, because they exchange most: twice a layer. Stages exchange once
a step.

Source: vllm/distributed/parallel_state.py#L1506-L1747 (initialize_model_parallel) @ v0.22.1
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mini_vllm.distributed.shm_all_reduce import SharedMemoryAllReduce, share_memory

RENDEZVOUS_SECONDS = 300
"""How long ranks wait for each other to start: the slowest imports torch on a busy machine."""
STEP_SECONDS = 300
"""How long a rank waits inside a step unless the configuration says otherwise."""


@dataclass(frozen=True)
class Rendezvous:
    """Where the ranks of one engine meet: a key-value store that one process holds open.

    The store is bound to port 0, so the system finds a free port that cannot be taken in
    between. Choosing a free port first and binding it later is a race.
    """

    host: str
    port: int


def open_store(host: str = "127.0.0.1") -> Any:
    """A store for a :class:`Rendezvous`; it exists as long as the object does."""
    wait = timedelta(seconds=RENDEZVOUS_SECONDS)
    return dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=wait)


class GroupCoordinator:
    """Some ranks that exchange tensors. With a single rank no exchange does anything.

    Args:
        ranks: their numbers in the engine, in the group's order.
        rank: which of them this process is.
        process_group: torch's, if there is more than one rank.
        shared_memory: the short way of an all-reduce, for ranks on one machine's CPU.

    Attributes:
        rank_in_group: this rank's place. Sources and destinations are places, too.

    Source: vllm/distributed/parallel_state.py#L290-L1087 (GroupCoordinator) @ v0.22.1
    """

    def __init__(
        self,
        ranks: Sequence[int],
        rank: int,
        process_group: Any = None,
        shared_memory: SharedMemoryAllReduce | None = None,
    ) -> None:
        self.ranks = list(ranks)
        self.rank = rank
        self.rank_in_group = self.ranks.index(rank)
        self.process_group = process_group
        self.shared_memory = shared_memory

    @property
    def world_size(self) -> int:
        return len(self.ranks)

    @property
    def is_first_rank(self) -> bool:
        return self.rank_in_group == 0

    @property
    def is_last_rank(self) -> bool:
        return self.rank_in_group == self.world_size - 1

    @property
    def next_rank(self) -> int:
        """The engine's number of the rank behind this one; behind the last comes the first."""
        return self.ranks[(self.rank_in_group + 1) % self.world_size]

    @property
    def prev_rank(self) -> int:
        return self.ranks[(self.rank_in_group - 1) % self.world_size]

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of all ranks' ``x``. Use what is returned: ``x`` may be overwritten.

        Source: vllm/distributed/parallel_state.py#L511-L537 (GroupCoordinator.all_reduce)
        @ v0.22.1
        """
        if self.world_size == 1:
            return x
        if self.shared_memory is not None:
            return self.shared_memory.all_reduce(x)
        x = x.contiguous()
        dist.all_reduce(x, group=self.process_group)
        return x

    def all_gather(self, x: Tensor, dim: int = -1) -> Tensor:
        """All ranks' ``x``, of equal shapes, one behind the other along ``dim``.

        Source: vllm/distributed/parallel_state.py#L544-L562 (GroupCoordinator.all_gather)
        @ v0.22.1
        """
        if self.world_size == 1:
            return x
        x = x.contiguous()
        parts = [torch.empty_like(x) for _ in self.ranks]
        dist.all_gather(parts, x, group=self.process_group)
        return torch.cat(parts, dim)

    def all_to_all(self, x: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Rows of ``x`` to their ranks: the first ``sent[0]`` go to rank 0, and so on.

        Returns:
            what comes: ``received[0]`` rows of rank 0 first, and so on.
        """
        if self.world_size == 1:
            return x
        arrived = x.new_empty(sum(received), *x.shape[1:])
        dist.all_to_all_single(
            arrived, x.contiguous(), list(received), list(sent), group=self.process_group
        )
        return arrived

    def isend(self, x: Tensor, dst: int) -> Any:
        """Begin to send; ``x`` must stay as it is until ``wait()`` of what is returned is over."""
        return dist.isend(x, self.ranks[dst], group=self.process_group)

    def irecv(self, x: Tensor, src: int) -> Any:
        """Begin to receive into ``x``, which is whole after ``wait()``."""
        return dist.irecv(x, self.ranks[src], group=self.process_group)


_TP: GroupCoordinator | None = None
_PP: GroupCoordinator | None = None


def get_tp_group() -> GroupCoordinator:
    """The ranks that share this rank's layers."""
    assert _TP is not None, "initialize_model_parallel() comes first"
    return _TP


def get_pp_group() -> GroupCoordinator:
    """The stages, from the first to the last, that this rank's shard goes through."""
    assert _PP is not None, "initialize_model_parallel() comes first"
    return _PP


def init_distributed_environment(
    world_size: int,
    rank: int,
    rendezvous: Rendezvous | None,
    backend: str = "gloo",
    timeout: float | None = None,
) -> None:
    """Meet the other ranks; a single rank has none to meet.

    Two time limits: until all have started, and later for a single exchange. Torch has one for
    both; so the ranks wait for each other in the store before torch begins to count.

    Args:
        backend: "gloo" between CPUs, "nccl" between NVIDIA GPUs.
        timeout: seconds for one exchange.

    Source: vllm/distributed/parallel_state.py#L1370-L1503 (init_distributed_environment) @ v0.22.1
    """
    if world_size == 1:
        return
    assert rendezvous is not None
    if rendezvous.host == "127.0.0.1":  # no rank is outside; a host's name may not even resolve
        name = "lo0" if sys.platform == "darwin" else "lo"
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
    wait = timedelta(seconds=RENDEZVOUS_SECONDS)
    store = dist.TCPStore(rendezvous.host, rendezvous.port, is_master=False, timeout=wait)
    store.set(f"here/{rank}", socket.gethostname())
    store.wait([f"here/{other}" for other in range(world_size)])
    dist.init_process_group(
        backend,
        store=dist.PrefixStore("groups", store),
        world_size=world_size,
        rank=rank,
        timeout=timedelta(seconds=timeout or STEP_SECONDS),
    )


def group_ranks(tp_size: int, pp_size: int) -> tuple[list[list[int]], list[list[int]]]:
    """The ranks of every TP group and of every PP group.

    TP varies fastest: rank = stage * tp_size + shard.

    Source: vllm/distributed/parallel_state.py#L1572-L1620 (initialize_model_parallel) @ v0.22.1
    """
    shards, stages = range(tp_size), range(pp_size)
    tp_groups = [[stage * tp_size + shard for shard in shards] for stage in stages]
    pp_groups = [[stage * tp_size + shard for stage in stages] for shard in shards]
    return tp_groups, pp_groups


def initialize_model_parallel(
    tp_size: int = 1,
    pp_size: int = 1,
    rank: int = 0,
    timeout: float | None = None,
    disable_custom_all_reduce: bool = False,
) -> None:
    """Make the groups of this rank, after :func:`init_distributed_environment`.

    Every rank makes *every* group, in the same order, also those it is not in: torch makes a group
    with all ranks, and would wait for ever for a rank that does not call.

    Args:
        timeout: seconds for one exchange; a new group does not have it from the old one.
        disable_custom_all_reduce: do not add up through shared memory.
    """
    global _TP, _PP
    tp_groups, pp_groups = group_ranks(tp_size, pp_size)
    seconds = timeout or STEP_SECONDS
    _TP = _make_groups(tp_groups, rank, seconds)
    _PP = _make_groups(pp_groups, rank, seconds)
    on_cpus = _TP.world_size > 1 and dist.get_backend(_TP.process_group) == "gloo"
    if on_cpus and not disable_custom_all_reduce:
        _TP.shared_memory = share_memory(_TP.ranks, rank, _TP.process_group, seconds)


def _make_groups(groups: Sequence[list[int]], rank: int, timeout: float) -> GroupCoordinator:
    mine = None
    for ranks in groups:
        process_group = (
            dist.new_group(ranks, timedelta(seconds=timeout)) if len(ranks) > 1 else None
        )
        if rank in ranks:
            mine = GroupCoordinator(ranks, rank, process_group)
    assert mine is not None
    return mine


def destroy_model_parallel() -> None:
    """Forget the groups, and leave torch's."""
    global _TP, _PP
    _TP = _PP = None
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
