"""The ring, against a sum; its cost, against what is sent."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from mini_vllm.distributed.collectives import (
    one_shot_time,
    ring_all_reduce,
    ring_time,
    tree_time,
)
from mini_vllm.distributed.simulated import SimulatedGroup, run_ranks


class OnlyMessages:
    """A group that can only send and receive messages, and counts what it sends."""

    def __init__(self, group: SimulatedGroup) -> None:
        self.rank_in_group, self.world_size = group.rank_in_group, group.world_size
        self.irecv, self.group = group.irecv, group
        self.sent: list[tuple[int, int]] = []

    def isend(self, x: Tensor, dst: int) -> Any:
        self.sent.append((dst, x.numel()))
        return self.group.isend(x, dst)


@pytest.mark.parametrize("p", [1, 2, 3, 5])
@pytest.mark.parametrize("n", [0, 1, 3, 7, 101, 4099])
def test_the_ring_adds_up(p: int, n: int) -> None:
    torch.manual_seed(n)
    inputs = torch.randint(-1000, 1000, (p, n))
    before = inputs.clone()

    def work(group: SimulatedGroup) -> tuple[Tensor, list[tuple[int, int]]]:
        ring = OnlyMessages(group)
        return ring_all_reduce(inputs[group.rank], ring), ring.sent

    for rank, (total, sent) in enumerate(run_ranks(p, work)):
        assert torch.equal(total, before.sum(0))
        assert [dst for dst, _ in sent] == [(rank + 1) % p] * (2 * (p - 1))
        assert sum(size for _, size in sent) == 2 * (p - 1) * -(-n // p)
    assert torch.equal(inputs, before), "the input stays"


def test_the_ring_takes_any_shape_and_all_ranks_agree_in_bits() -> None:
    inputs = torch.randn(3, 4, 5).transpose(1, 2)
    results = run_ranks(3, lambda group: ring_all_reduce(inputs[group.rank], group))
    torch.testing.assert_close(results[0], inputs.sum(0))
    assert all(torch.equal(result, results[0]) for result in results)


def test_what_an_all_reduce_costs() -> None:
    alpha, beta = 5e-6, 1 / 300e9
    assert ring_time(0, 4, alpha, beta) == pytest.approx(6 * alpha)
    assert ring_time(4e9, 4, 0, 1) == pytest.approx(6e9)
    assert tree_time(100, 8, 1, 0) == 6 and tree_time(100, 5, 0, 1) == 600
    assert one_shot_time(100, 4, 1, 1) == 301
    for time in (ring_time, tree_time, one_shot_time):
        assert time(1000, 1, 1.0, 1.0) == 0
    small, large = 64 * 1024, 64 * 2**20
    assert one_shot_time(small, 8, alpha, beta) < ring_time(small, 8, alpha, beta)
    assert ring_time(large, 8, alpha, beta) < one_shot_time(large, 8, alpha, beta)
