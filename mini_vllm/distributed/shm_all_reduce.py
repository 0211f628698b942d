"""All-reduce between processes of one machine, through memory that all of them map.

::

             calls     slots of the odd calls   slots of the even calls
    rank 0     7       [ x of call 7 ]          [ x of call 6 ]
    rank 1     6       [ x of call 5 ]          [ x of call 6 ]     <- still adds up call 6

A rank copies its tensor into its own slot, counts its call, waits until all ranks have counted as
many, and adds all slots up. All add in the order of the ranks, so all have the same sum to the
last bit.

Two slots in turns are enough. Rank 0 writes its eighth call over its sixth, but only after it has
seen rank 1 count its seventh: and a rank that counts its seventh call has added up the sixth.

Gloo, torch's own, sends every tensor through a socket: system calls, and a thread that must wake
up. Twice a layer that is more than two ranks save by sharing a small batch's products.

Source: vllm/distributed/device_communicators/cpu_communicator.py#L229-L276 (_CPUSHMDistributed)
@ v0.22.1
"""

from __future__ import annotations

import mmap
import os
import secrets
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mini_vllm.distributed.shm_broadcast import memory_fence

SLOT_BYTES = 1 << 20
"""A larger tensor goes in pieces."""
LINE_BYTES = 64
"""Each count has a cache line of its own: otherwise a write to one would slow down reads of the
others."""
PATIENT_LOOKS = 200
"""How often a rank looks at the others' counts before it offers its core to another process."""
NAP = 0.0001
"""Seconds between two looks of a rank that has waited for longer than a step's ranks differ."""
NAP_AFTER = 0.002


class SharedMemoryAllReduce:
    """One rank's side.

    Args:
        memory: :meth:`num_bytes` bytes, zeroed at first, that all ranks see.
        rank, world_size: this rank's place, and how many there are.
        timeout: seconds to wait for the others.
    """

    def __init__(self, memory: Any, rank: int, world_size: int, timeout: float) -> None:
        self.rank, self.world_size, self.timeout = rank, world_size, timeout
        self.calls = 0
        head = world_size * LINE_BYTES
        self.counts = memoryview(memory)[:head].cast("q")[:: LINE_BYTES // 8]
        """Calls that each rank has written; this rank sets only its own."""
        slots = torch.frombuffer(memory, dtype=torch.uint8, offset=head)
        self.slots = slots.view(2, world_size, SLOT_BYTES)

    @staticmethod
    def num_bytes(world_size: int) -> int:
        return world_size * (LINE_BYTES + 2 * SLOT_BYTES)

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of all ranks' ``x``, in memory of its own.

        Raises:
            RuntimeError: if a rank does not come within ``timeout``.
        """
        pieces = x.reshape(-1).split(SLOT_BYTES // x.element_size())
        sums = [self._all_reduce(piece) for piece in pieces]
        return (sums[0] if len(sums) == 1 else torch.cat(sums)).view(x.shape)

    def _all_reduce(self, x: Tensor) -> Tensor:
        """[N] -> [N], of at most SLOT_BYTES."""
        num_bytes = x.numel() * x.element_size()
        slots = self.slots[self.calls % 2, :, :num_bytes].view(x.dtype)  # [ranks, N]
        slots[self.rank] = x
        memory_fence()
        self.calls += 1
        self.counts[self.rank] = self.calls
        self._wait()
        memory_fence()
        total = slots[0] + slots[1]
        for others in slots[2:]:
            total += others
        return total

    def _wait(self) -> None:
        """Look; then look and offer the core; then look now and then."""
        looks, begin = 0, 0.0
        while min(self.counts) < self.calls:
            looks += 1
            if looks < PATIENT_LOOKS:
                continue
            begin = begin or time.monotonic()
            waited = time.monotonic() - begin
            if waited > self.timeout:
                late = [r for r, count in enumerate(self.counts) if count < self.calls]
                raise RuntimeError(
                    f"rank {self.rank} waited {self.timeout:g} s in all_reduce for ranks {late}"
                )
            time.sleep(NAP if waited > NAP_AFTER else 0)


def share_memory(
    ranks: Sequence[int], rank: int, process_group: Any, timeout: float
) -> SharedMemoryAllReduce | None:
    """Map one piece of memory in all ranks of a group, if they are on one machine; else None.

    The first rank makes it without a name, so nothing is left behind however a process ends; the
    others open it through the first one's file descriptor. A secret in it tells whether what they
    opened is the same: on another machine the path leads nowhere, or elsewhere. Every rank calls
    this, and all get the same answer.
    """
    place, size = list(ranks).index(rank), SharedMemoryAllReduce.num_bytes(len(ranks))
    key = secrets.token_bytes(LINE_BYTES)
    offer: list[Any] = [None]
    fd = -1
    if place == 0 and hasattr(os, "memfd_create"):
        fd = os.memfd_create("mini_vllm all_reduce")
        os.ftruncate(fd, size)
        os.pwrite(fd, key, 0)
        offer = [(f"/proc/{os.getpid()}/fd/{fd}", key)]
    dist.broadcast_object_list(offer, ranks[0], group=process_group)
    memory = _map(offer[0], size)
    opened = torch.tensor(int(memory is not None))
    dist.all_reduce(opened, dist.ReduceOp.MIN, group=process_group)
    if fd >= 0:
        os.close(fd)
    if memory is None or not opened:
        return None
    memory[place * LINE_BYTES : (place + 1) * LINE_BYTES] = bytes(LINE_BYTES)
    dist.barrier(group=process_group)  # until all counts are 0
    return SharedMemoryAllReduce(memory, place, len(ranks), timeout)


def _map(offer: tuple[str, bytes] | None, size: int) -> mmap.mmap | None:
    if offer is None:
        return None
    path, key = offer
    try:
        fd = os.open(path, os.O_RDWR)
    except OSError:
        return None
    try:
        if os.fstat(fd).st_size != size or os.pread(fd, LINE_BYTES, 0) != key:
            return None
        return mmap.mmap(fd, size)
    finally:
        os.close(fd)
