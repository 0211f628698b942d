"""Latency and throughput of one load under different budgets, in the arena's simulator.

The scheduler is the real one; time is virtual, at the prices of `benchmarks/results/arena/
cost_model.json`, so the same numbers come out on every machine. The workload is `documents`: short
questions, and now and then a prompt of a thousand tokens. It arrives at several speeds.

    python -m benchmarks.budget_curve
    python -m benchmarks.budget_curve --save        writes benchmarks/results/arena/budget.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from labkit.arena.cost import DEFAULT, load_model
from labkit.arena.metrics import figures
from labkit.arena.simulator import simulate
from labkit.arena.workloads import WORKLOADS
from labkit.course.files import write_text
from labkit.course.root import ROOT
from mini_vllm.core.scheduler import Scheduler

PATH = ROOT / "benchmarks" / "results" / "arena" / "budget.json"
BUDGETS = (32, 64, 128, 256, 512, 2048)
SPEEDS = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
"""Times the workload's own arrival rate, 18 requests a second."""
NUM_REQUESTS = 400


def point(budget: int, speed: float) -> dict[str, Any]:
    """One budget at one speed: output tokens a second, and milliseconds that clients wait."""
    workload = WORKLOADS["documents"]
    limits = replace(
        workload.scheduler, max_num_batched_tokens=budget, long_prefill_token_threshold=0
    )
    workload = replace(workload, scheduler=limits)
    story = workload.arrivals(0, NUM_REQUESTS)
    arrivals = [replace(arrival, time=arrival.time / speed) for arrival in story]
    cost = load_model(DEFAULT)
    run = simulate(Scheduler, workload, arrivals, cost, check_every=0)
    found = figures(run, workload, cost)
    return {
        "budget": budget,
        "speed": speed,
        "tokens_per_s": round(found.tokens_per_second, 1),
        "ttft_p50_ms": round(1e3 * found.ttft.p50, 1),
        "ttft_p99_ms": round(1e3 * found.ttft.p99, 1),
        "tpot_p50_ms": round(1e3 * found.tpot.p50, 2),
        "tpot_p99_ms": round(1e3 * found.tpot.p99, 2),
    }


def sweep(
    budgets: Sequence[int] = BUDGETS, speeds: Sequence[float] = SPEEDS
) -> list[dict[str, Any]]:
    """All points, budget by budget."""
    return [point(budget, speed) for budget in budgets for speed in speeds]


def main(argv: Sequence[str]) -> int:
    """Sweep and print; see the module's docstring."""
    parser = argparse.ArgumentParser("budget_curve", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--save", action="store_true", help=f"write {PATH.relative_to(ROOT)}")
    options = parser.parse_args(argv)
    points = sweep()
    print("budget  speed  tokens/s  TTFT p50    p99  TPOT p50    p99   (ms)")
    for p in points:
        print(
            f"{p['budget']:6}{p['speed']:7.1f}{p['tokens_per_s']:10.1f}{p['ttft_p50_ms']:10.1f}"
            f"{p['ttft_p99_ms']:8.0f}{p['tpot_p50_ms']:9.1f}{p['tpot_p99_ms']:8.1f}"
        )
    if options.save:
        data = {"workload": "documents", "requests": NUM_REQUESTS, "results": points}
        write_text(PATH, json.dumps(data, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
