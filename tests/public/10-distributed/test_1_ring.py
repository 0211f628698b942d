"""Task 10.1: ring all-reduce."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from labkit.testing import expect
from mini_vllm.distributed.collectives import ring_all_reduce


def test_10_1_three_ranks_three_numbers(lab: Any) -> None:
    """1 2 3, 10 20 30 and 100 200 300: each rank gets 111 222 333."""
    inputs = [torch.tensor([1, 2, 3]) * 10**rank for rank in range(3)]
    results, _ = lab.run_messages(inputs, ring_all_reduce)
    for rank, result in enumerate(results):
        expect(result.tolist(), [111, 222, 333], at=f"rank {rank} of 3")


def test_10_1_alone() -> None:
    """One rank has the sum already, and sends nothing."""

    class NoTransport:
        rank_in_group, world_size = 0, 1

    x = torch.tensor([1.0, 2.0])
    yours = ring_all_reduce(x, NoTransport())  # type: ignore[arg-type]
    expect(yours.tolist(), [1.0, 2.0], at="one rank")


@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
@pytest.mark.parametrize("size", [0, 1, 4, 7, 101])
def test_10_1_sizes_that_do_not_fit(lab: Any, ranks: int, size: int) -> None:
    """Fewer numbers than ranks, or a number of them that p does not divide."""
    torch.manual_seed(size)
    inputs = list(torch.randint(-1000, 1000, (ranks, size)))
    results, _ = lab.run_messages(inputs, ring_all_reduce)
    for rank, result in enumerate(results):
        yours, right = result.tolist(), sum(inputs).tolist()  # type: ignore[union-attr]
        expect(yours, right, at=f"rank {rank} of {ranks}, {size} numbers")


def test_10_1_any_shape_and_dtype(lab: Any) -> None:
    """A matrix comes back as a matrix, whole numbers as whole numbers."""
    inputs = [torch.arange(12).view(3, 4).T * (rank + 1) for rank in range(2)]
    results, _ = lab.run_messages(inputs, ring_all_reduce)
    expect(list(results[0].shape), [4, 3], at="shape of a [4, 3] that is not contiguous")
    expect(results[1].tolist(), (inputs[0] * 3).tolist(), at="rank 1 of 2")
    expect(str(results[0].dtype), "torch.int64", at="dtype")


def test_10_1_your_own_stays(lab: Any) -> None:
    """The input is as it was: the caller may still need it."""
    inputs = [torch.tensor([1.0, 2.0, 3.0, 4.0]) for _ in range(2)]
    lab.run_messages(inputs, ring_all_reduce)
    expect(inputs[0].tolist(), [1.0, 2.0, 3.0, 4.0], at="x of rank 0, afterwards")


def test_10_1_all_ranks_have_the_same_bits(lab: Any) -> None:
    """Floating-point sums depend on their order: all ranks must have added in the same one."""
    inputs = list(torch.randn(4, 33))
    results, _ = lab.run_messages(inputs, ring_all_reduce)
    same = all(torch.equal(result, results[0]) for result in results)
    expect(same, True, at="4 ranks, 33 random numbers")


def test_10_1_only_to_the_next(lab: Any) -> None:
    """2 (p - 1) messages to the next rank, each of one chunk: so no link carries more."""
    _, sent = lab.run_messages([torch.zeros(10) for _ in range(4)], ring_all_reduce)
    for rank, messages in enumerate(sent):
        to = (rank + 1) % 4
        expect(messages, [(to, 3)] * 6, at=f"rank {rank} of 4, 10 numbers: (destination, size)")
