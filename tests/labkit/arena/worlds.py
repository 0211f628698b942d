"""Small worlds and round prices, so that a test can say by hand what must come out."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.arena.cost import CostModel
from labkit.arena.simulator import MakeScheduler, Run, simulate
from labkit.arena.workloads import Arrival, Slo, Workload
from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.scheduler import Scheduler

# A step 1 s, a prompt token 0.1 s, a decode 0.5 s; everything else is free.
ROUND = CostModel((1.0, 0.0, 0.1, 0.0, 0.5, 0.0, 0.0, 0.0))


def world(
    blocks: int = 64, seqs: int = 8, budget: int = 64, host_blocks: int = 0, policy: str = "fcfs"
) -> Workload:
    """A workload without a story; blocks hold 4 tokens, and `blocks` of them are usable."""
    return Workload(
        "small",
        "a few requests",
        SchedulerConfig(
            max_num_batched_tokens=budget, max_num_seqs=seqs, max_model_len=256,
            policy=policy,  # type: ignore[arg-type]
        ),
        CacheConfig(block_size=4, num_gpu_blocks=blocks + 1, num_cpu_blocks=host_blocks),
        {0: Slo(ttft=5.0, tpot=2.0)},
        4,
        lambda rng: iter(()),
    )  # fmt: skip


def arrival(time: float, prompt_len: int, max_tokens: int, start: int = 0) -> Arrival:
    """A request whose prompt is `start + 1, start + 2, ...`; by default no other has it."""
    first = start or int(1000 * time) * 1000
    return Arrival(time, (range(first + 1, first + 1 + prompt_len),), max_tokens)


def play(
    arrivals: Sequence[Arrival],
    workload: Workload | None = None,
    make_scheduler: MakeScheduler = Scheduler,
    cost: CostModel = ROUND,
    check_every: int = 1,
) -> Run:
    """Simulate with every check on."""
    return simulate(make_scheduler, workload or world(), arrivals, cost, check_every)
