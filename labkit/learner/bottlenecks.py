"""What `make run-19` shows: laws, bounds and a search on one load of the arena, and on recorded
profiles; and the engine, whose device and kernels the learner's modules choose."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

from labkit.course.root import find_root

PROMPTS = ("Once upon a time", "The little fox", "In the winter")
TOKENS = 16
WORKLOAD = "documents"
REQUESTS = 64
BUDGETS = (256, 512, 1024, 2048)
SEATS = (4, 16)
PROMISES = ((0.3, 0.02), (0.1, 0.02))
ABOUT_BOTTLENECKS = (
    f"{REQUESTS} requests of the arena's {WORKLOAD!r} by Little's law, a search for two promises on"
    f" its clock, two recorded steps, a recorded flame graph; and {len(PROMPTS)} prompts"
)


def measure_bottlenecks() -> dict[str, Any]:
    """All of it is counted or on a clock of its own, so it repeats exactly."""
    begin = time.perf_counter()
    result: dict[str, Any] = {"tokens": [], "names": [], "errors": [], "rows": [], "said": []}
    answer_prompts(result)
    follow_a_load(result)
    read_profiles(result)
    search_twice(result)
    return result | {"seconds": time.perf_counter() - begin}


def answer_prompts(result: dict[str, Any]) -> None:
    """The bundled model, on the platform and the backend that the learner's modules choose."""
    from mini_vllm import LLM, SamplingParams

    llm = LLM("storyteller", num_gpu_blocks=256)
    params = SamplingParams(max_tokens=TOKENS, temperature=0.0, ignore_eos=True)
    outputs = llm.generate(list(PROMPTS), params, use_tqdm=False)
    worker: Any = llm.engine.core.executor.worker  # type: ignore[attr-defined]
    result["tokens"] += [list(output.outputs[0].token_ids) for output in outputs]
    result["names"] += [f"prompt {number}" for number in range(len(outputs))]
    result["errors"] += [str(output.error) for output in outputs if output.error]
    result["rows"].append(["attention backend", type(worker.backend).__name__])
    llm.shutdown()


def run_arena(requests: int, budget: int = 0, seats: int = 0) -> Any:
    """The real scheduler on the arena's clock; 0: the workload's own limit."""
    from labkit.arena.cost import DEFAULT, load_model
    from labkit.arena.simulator import simulate
    from labkit.arena.workloads import WORKLOADS
    from mini_vllm.core.scheduler import Scheduler

    world = WORKLOADS[WORKLOAD]
    own = world.scheduler
    limits = replace(
        own,
        max_num_batched_tokens=budget or own.max_num_batched_tokens,
        max_num_seqs=seats or own.max_num_seqs,
        long_prefill_token_threshold=0,
    )
    arrivals = world.arrivals(0, requests)
    cost = load_model(DEFAULT)
    return simulate(Scheduler, replace(world, scheduler=limits), arrivals, cost, check_every=0)


def follow_a_load(result: dict[str, Any]) -> None:
    """Little's law, and percentiles of one run: exact, and as a histogram tells."""
    from mini_vllm.observability.capacity import (
        blocks_for,
        bounds_from_buckets,
        little,
        percentile,
    )

    run = run_arena(REQUESTS)
    flow = little([(one.arrived, one.finished) for one in run.served], run.seconds)
    tokens = sum(one.prompt_len + one.output_len for one in run.served) / len(run.served)
    waits = [one.ttft for one in run.served]
    bounds = [0.06, 0.08, 0.1, 0.25, 0.5, math.inf]
    counts = [
        sum(low < wait <= high for wait in waits)
        for low, high in zip([0, *bounds], bounds, strict=False)
    ]
    low, high = bounds_from_buckets(bounds, counts, 99)
    result["rows"] += [
        ["requests a second", f"{flow.rate:.2f}"],
        ["seconds of each", f"{flow.seconds:.2f}"],
        ["at a time", f"{flow.number:.1f}"],
        ["blocks of 16 for them", f"{blocks_for(flow, tokens, 16)}"],
        ["TTFT p99", f"{percentile(waits, 99):.3f} s"],
        ["  by its buckets", f"{low} to {high} s"],
    ]


def read_profiles(result: dict[str, Any]) -> None:
    """What bounds the two recorded steps, and what to mend first in the recorded stacks."""
    from mini_vllm.observability.bottleneck import (
        classify_step,
        read_stacks,
        read_step_profile,
        which_to_mend,
    )

    folder = find_root() / "phases" / "19-performance-engineer" / "profiles"
    for name in ("cpu", "h100"):
        bound = classify_step(read_step_profile(folder / f"{name}.toml"))
        result["rows"].append([f"a step, {name}", f"{bound.by}, x{bound.factor:.2f}"])
    result["said"].append("own   with its calls   faster at most   function")
    for one in which_to_mend(read_stacks(folder / "cpu-stacks.txt"))[:5]:
        name = one.name.rpartition("/")[2]
        result["said"].append(f"{one.own:4.0%} {one.whole:13.0%} {one.factor:16.2f}    {name}")


def search_twice(result: dict[str, Any]) -> None:
    """A promise that can be held, and one that nothing holds."""
    from mini_vllm.observability.capacity import percentile
    from mini_vllm.observability.experiments import Promise, successive_halving

    def measure(config: tuple[int, int], requests: int) -> tuple[float, float]:
        served = run_arena(requests, *config).served
        return percentile([one.ttft for one in served], 99), percentile(
            [one.tpot for one in served], 50
        )

    configs = [(budget, seats) for budget in BUDGETS for seats in SEATS]
    for ttft, tpot in PROMISES:
        found = successive_halving(configs, measure, Promise(ttft, tpot), 16, REQUESTS)
        last = next(one for one in reversed(found.measured) if one.config == found.nearest)
        requests = sum(one.requests for one in found.measured)
        says = "none" if found.best is None else "{} tokens, {} seats".format(*found.best)
        result["rows"] += [
            [f"TTFT {ttft:g} s, TPOT {1e3 * tpot:g} ms", says],
            ["  the nearest uses", f"{last.strain:.0%}"],
            ["  measured requests", f"{requests}"],
        ]
