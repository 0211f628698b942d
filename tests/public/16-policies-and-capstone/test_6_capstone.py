"""Task 16.6: your policy in the arena, on documents among short questions."""

from __future__ import annotations

import itertools
from dataclasses import asdict

from labkit.arena.cost import load_model
from labkit.arena.metrics import Figures, figures
from labkit.arena.simulator import simulate
from labkit.arena.workloads import WORKLOADS
from labkit.testing import Divergence, expect
from mini_vllm.config import SchedulerConfig
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.policies.capstone import Capstone

SEEDS = (4, 5)
REQUESTS = 200
NUMBERS = ("max_num_batched_tokens", "max_num_seqs", "max_model_len")


def race(cls: type[Scheduler], seed: int, requests: int, every: int, name: str) -> Figures:
    """Serve the workload; the referee raises RuleBroken if a rule is broken."""
    workload, cost = WORKLOADS[name], load_model()
    arrivals = workload.arrivals(seed, requests)
    return figures(simulate(cls, workload, arrivals, cost, every), workload, cost)


def test_16_6_limits_only_tighten() -> None:
    """The machine is what it is: you may use less of it, and change nothing else."""
    for budget, rows in itertools.product((1, 8, 40, 96, 700, 2048), (1, 16, 64)):
        config = SchedulerConfig(budget, rows, 512, "priority", long_prefill_token_threshold=256)
        yours, given = asdict(Capstone.limits(config)), asdict(config)
        at = f"limits of a machine with {budget} tokens per step and {rows} rows"
        for key in NUMBERS:
            within = 1 <= yours[key] <= given[key]
            expect(within, True, at=f"{at}: is your {key}, {yours[key]}, within 1..{given[key]}?")
        threshold = yours["long_prefill_token_threshold"]
        expect(0 < threshold <= 256, True, at=f"{at}: is your threshold, {threshold}, in 1..256?")
        for key in ("policy", "scheduler_reserve_full_isl", "num_lookahead_tokens"):
            expect(yours[key], given[key], at=f"{at}: {key}")
    whole = SchedulerConfig(2048, 64, 2048, enable_chunked_prefill=False)
    at = "2048 tokens per step, chunked prefill off: a prompt must fit into one step. Your budget"
    expect(Capstone.limits(whole).max_num_batched_tokens, 2048, at=at)


def test_16_6_every_rule_is_kept_on_documents() -> None:
    """Every request is served in full, and the referee checks every step."""
    served = race(Capstone, 2, 60, 1, "documents").requests
    expect(served, 60, at="60 requests of `documents`: how many were served in full?")


def test_16_6_every_rule_is_kept_when_blocks_run_out() -> None:
    """In `pressure` requests are preempted and come back; none may be lost."""
    served = race(Capstone, 2, 50, 1, "pressure").requests
    expect(served, 50, at="50 requests of `pressure`: how many were served in full?")


def test_16_6_more_requests_in_time_than_v1() -> None:
    """Goodput over two seeds of `documents`, beside that of vLLM V1's scheduler."""
    yours, theirs = (
        [race(cls, seed, REQUESTS, 64, "documents").goodput for seed in SEEDS]
        for cls in (Capstone, Scheduler)
    )
    ratio, per_seed = sum(yours) / sum(theirs), zip(SEEDS, yours, theirs, strict=True)
    if ratio <= 1.0:
        at = f"requests served in time per second, over seeds {SEEDS}: your sum by V1's"
        state = {f"seed {s}": f"yours {y:.2f}, V1's {t:.2f}" for s, y, t in per_seed}
        raise Divergence(at, f"{ratio:.3f}", "more than 1", state)
