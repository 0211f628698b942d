"""Ranks that add up through shared memory: the sum, its bits, many calls, and a late rank."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from mini_vllm.distributed.shm_all_reduce import SLOT_BYTES, SharedMemoryAllReduce, _map
from tests.engine.pace import PATIENCE


def make_sides(world_size: int, timeout: float) -> list[SharedMemoryAllReduce]:
    """Each rank's, over one piece of memory."""
    memory = mmap.mmap(-1, SharedMemoryAllReduce.num_bytes(world_size))
    return [SharedMemoryAllReduce(memory, r, world_size, timeout) for r in range(world_size)]


def run_ranks(world_size: int, work: Callable[[SharedMemoryAllReduce], Any]) -> list[Any]:
    """`work` of each rank in a thread of its own."""
    with ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(work, make_sides(world_size, PATIENCE)))


@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_the_sum_in_the_order_of_the_ranks(world_size: int, dtype: torch.dtype) -> None:
    inputs = (torch.randn(world_size, 3, 5) * 100).to(dtype)
    expected = inputs[0] + inputs[1]
    for more in inputs[2:]:
        expected = expected + more
    for total in run_ranks(world_size, lambda side: side.all_reduce(inputs[side.rank])):
        assert total.dtype == dtype and torch.equal(total, expected), "all ranks, to the last bit"


def test_a_result_is_not_touched_by_later_calls() -> None:
    def work(side: SharedMemoryAllReduce) -> list[Tensor]:
        return [side.all_reduce(torch.tensor([float(call)])) for call in range(5)]

    for results in run_ranks(2, work):
        assert [result.item() for result in results] == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("numel", [0, 1, SLOT_BYTES // 4, SLOT_BYTES // 4 + 1, SLOT_BYTES])
def test_of_any_size_and_layout(numel: int) -> None:
    x = torch.arange(numel, dtype=torch.float32)
    y = torch.arange(6.0).reshape(2, 3).T

    def work(side: SharedMemoryAllReduce) -> tuple[Tensor, Tensor]:
        return side.all_reduce(x * side.rank), side.all_reduce(y)

    for first, second in run_ranks(2, work):
        assert torch.equal(first, x) and torch.equal(second, 2 * y)


def test_ranks_of_different_speed_stay_together() -> None:
    """Every rank is now and then the last one, and sometimes by far."""

    def work(side: SharedMemoryAllReduce) -> list[float]:
        totals = []
        for call in range(60):
            if call % 7 == side.rank:
                time.sleep(0.004)
            totals.append(side.all_reduce(torch.full((100,), float(call)))[99].item())
        return totals

    assert run_ranks(3, work) == [[3.0 * call for call in range(60)]] * 3


def test_a_rank_that_never_comes_is_named() -> None:
    """One after the other: the second knows that the first has come."""
    first, _, last = make_sides(3, timeout=0.2)
    for side, missing in ((last, [0, 1]), (first, [1])):
        with pytest.raises(RuntimeError) as error:
            side.all_reduce(torch.ones(3))
        said = f"rank {side.rank} waited 0.2 s in all_reduce for ranks {missing}"
        assert str(error.value) == said


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="a file without a name: Linux")
def test_shared_memory_of_another_group_is_refused() -> None:
    fd = os.memfd_create("test")
    path, key = f"/proc/self/fd/{fd}", b"k" * 64
    os.ftruncate(fd, 4096)
    os.pwrite(fd, key, 0)
    mapped = _map((path, key), 4096)
    assert mapped is not None and mapped[:64] == key
    assert _map((path, b"x" * 64), 4096) is None, "another one's"
    assert _map((path, key), 8192) is None, "of another size"
    assert _map(("/proc/self/fd/987654", key), 4096) is None and _map(None, 4096) is None
    os.close(fd)
