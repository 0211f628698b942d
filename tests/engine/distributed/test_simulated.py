"""Ranks that are threads: when they wait in vain, which no clock can tell."""

from __future__ import annotations

import pytest
import torch

from mini_vllm.distributed.simulated import SimulatedGroup, run_ranks


def test_a_ring_in_which_every_rank_waits_times_out() -> None:
    def work(group: SimulatedGroup) -> None:
        group.irecv(torch.zeros(1), (group.rank + 1) % 4).wait()

    with pytest.raises(TimeoutError, match=r"waits for a message from rank \d; .*every rank waits"):
        run_ranks(4, work)


def test_a_failed_rank_ends_the_ranks_that_wait_for_it() -> None:
    def work(group: SimulatedGroup) -> None:
        if group.rank == 2:
            raise KeyError("mine")
        group.all_reduce(torch.zeros(1))

    with pytest.raises(KeyError, match="mine"):
        run_ranks(3, work)


def test_one_gives_up_and_the_other_is_served() -> None:
    """Not both: a rank that has given up may still send."""

    def work(group: SimulatedGroup) -> str:
        x, other = torch.zeros(1), 1 - group.rank
        try:
            group.irecv(x, other).wait()
        except TimeoutError:
            group.isend(torch.ones(1), other).wait()
            return "gave up"
        return f"got {x.item():g}"

    assert sorted(run_ranks(2, work)) == ["gave up", "got 1"]


def test_a_rank_that_is_only_late_does_not_time_out() -> None:
    def work(group: SimulatedGroup) -> list[float]:
        return [group.all_reduce(torch.tensor(float(call))).item() for call in range(300)]

    assert run_ranks(4, work) == [[4.0 * call for call in range(300)]] * 4
