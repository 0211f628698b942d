"""A scheduler in another process plans as it does in this one, and only its plans count."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from labkit.arena.contest import VllmV0Swap
from labkit.arena.cost import load_model
from labkit.arena.referee import RuleBroken
from labkit.arena.remote import RemoteScheduler
from labkit.arena.simulator import Run, simulate
from labkit.arena.workloads import WORKLOADS
from labkit.course.root import ROOT
from labkit.inside import child
from labkit.process.worker import Worker
from mini_vllm.core.scheduler import Scheduler

V0 = "mini_vllm.policies.vllm_v0:"
Change = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker(ROOT, {}, child.Limits(seconds=60)) as worker:
        yield worker


class Liar(RemoteScheduler):
    """The other side's plans with something changed on their way here."""

    def __init__(self, change: Change, *args: Any) -> None:
        self.change = change
        super().__init__(*args)

    def _read(self, data: Any) -> Any:
        self.change(data)
        return super()._read(data)


def serve(worker: Worker, target: str, change: Change = lambda data: None, **options: Any) -> Run:
    workload = WORKLOADS["pressure"]

    def make(*limits: Any) -> Scheduler:
        return cast(Scheduler, Liar(change, worker, target, *limits, options))

    return simulate(make, workload, workload.arrivals(3, 80), load_model(), 20)


def test_a_race_through_a_pipe_is_the_race_itself(worker: Worker) -> None:
    """V0 that swaps, whose plans have everything in them that a plan can have."""
    workload = WORKLOADS["pressure"]
    here = simulate(VllmV0Swap, workload, workload.arrivals(3, 80), load_model(), 20)
    there = serve(worker, f"{V0}VllmV0", preemption_mode=f"{V0}PreemptionMode.SWAP")
    assert here.swapped_blocks > 0
    assert there == here


def free_of_charge(plan: dict[str, Any]) -> None:
    """Tokens that no row describes would cost nothing."""
    plan["known"] = []


def half_a_token(plan: dict[str, Any]) -> None:
    plan["tokens"] = {name: 0.5 for name in plan["tokens"]}


def already_computed(plan: dict[str, Any]) -> None:
    """New requests whose prompt, it says, was in the cache but for one token."""
    for row in plan["new"]:
        row[1] += plan["tokens"][row[0]] - 1
        plan["tokens"][row[0]] = 1


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        (free_of_charge, "describes"),
        (half_a_token, "0.5 stands in a plan"),
        (already_computed, "another text stands there"),
    ],
)
def test_a_plan_that_lies_is_found_out(worker: Worker, lie: Change, message: str) -> None:
    with pytest.raises(RuleBroken, match=message):
        serve(worker, "mini_vllm.core.scheduler:Scheduler", lie)
