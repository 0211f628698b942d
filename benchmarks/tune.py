"""`make tune`: the engine's settings for a promise to users, searched on this machine.

Requests arrive at `--rate` a second, whatever the engine makes of it, and each is measured from the
time at which it should have been sent. A configuration is `max_num_batched_tokens`, `max_num_seqs`
and threads; successive halving gives the better half of them twice as many requests, round by
round. At the end the best one runs beside the default, in turns.

    python -m benchmarks.tune --rate 4 --ttft-p99 0.5 --tpot-p50 0.02
    python -m benchmarks.tune --arena           the arena's clock: the same numbers everywhere
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mini_vllm.observability.capacity import percentile
from mini_vllm.observability.experiments import (
    Comparison,
    Measured,
    Promise,
    compare_pairs,
    successive_halving,
)

BUDGETS = (64, 256, 1024, 2048)
SEQS = (8, 32, 128)
RATE = 4.0
"""Requests a second, if nothing is said."""
MANY = 1000
"""Requests by which a story's own rate is known."""
TURNS = 4
"""Pairs of the comparison at the end: each runs both configurations with the most requests."""


@dataclass(frozen=True)
class Settings:
    """One configuration."""

    max_num_batched_tokens: int
    max_num_seqs: int
    num_threads: int

    def row(self) -> str:
        """As it stands in a table."""
        return f"{self.max_num_batched_tokens:>7} {self.max_num_seqs:>5} {self.num_threads:>8}"

    def words(self) -> str:
        """As `LLM` takes it."""
        return (
            f"max_num_batched_tokens={self.max_num_batched_tokens}, "
            f"max_num_seqs={self.max_num_seqs}, num_threads={self.num_threads}"
        )


Measure = Callable[[Settings, int], tuple[float, float]]
"""`(settings, requests) -> (ttft_p99, tpot_p50)` in seconds."""


def grid(
    cores: int, budgets: Sequence[int] = BUDGETS, seqs: Sequence[int] = SEQS
) -> list[Settings]:
    """All configurations, but those whose budget has no token for each request of a step."""
    threads = sorted({1, max(1, cores // 2), cores})
    found = itertools.product(budgets, seqs, threads)
    return [Settings(*one) for one in found if one[0] >= one[1]]


def default_settings(cores: int) -> Settings:
    """What the engine takes if nothing is said."""
    from mini_vllm.config import SchedulerConfig

    limits = SchedulerConfig()
    return Settings(limits.max_num_batched_tokens, limits.max_num_seqs, cores)


# ---------------------------------------------------------------- measuring


def measure_engine(model: str, rate: float, seed: int = 0) -> Measure:
    """Measures on the real engine, by a clock on the wall."""
    import numpy as np

    from mini_vllm import LLM, SamplingParams
    from mini_vllm.entrypoints.load import arrival_times

    def measure(settings: Settings, requests: int) -> tuple[float, float]:
        llm = LLM(
            model,
            max_model_len=1024,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            max_num_seqs=settings.max_num_seqs,
            num_threads=settings.num_threads,
            use_tqdm_on_load=False,
        )
        try:
            once = SamplingParams(max_tokens=4, temperature=0.0)
            llm.generate("Once", once, use_tqdm=False)  # the first step compiles
            rng = random.Random(seed)
            lengths = [(rng.randint(16, 400), rng.randint(8, 64)) for _ in range(requests)]
            times = arrival_times(requests, rate, 1.0, np.random.default_rng(seed))
            return _serve(llm.engine, lengths, times, rng)
        finally:
            llm.shutdown()

    return measure


def _serve(
    engine: Any, lengths: Sequence[tuple[int, int]], times: Sequence[float], rng: random.Random
) -> tuple[float, float]:
    """Send requests when they are due, and step until all have their tokens."""
    from mini_vllm import SamplingParams, TokensPrompt

    first: dict[str, float] = {}
    last: dict[str, float] = {}
    begin, sent = time.perf_counter(), 0
    while sent < len(times) or engine.has_unfinished_requests():
        now = time.perf_counter() - begin
        while sent < len(times) and times[sent] <= now:
            prompt, output = lengths[sent]
            ids = [rng.randrange(3, 1000) for _ in range(prompt)]
            params = SamplingParams(max_tokens=output, temperature=0.0, ignore_eos=True)
            engine.add_request(str(sent), TokensPrompt(prompt_token_ids=ids), params)
            sent += 1
        if not engine.has_unfinished_requests():
            time.sleep(max(0.0, times[sent] - now))
            continue
        outputs = engine.step()
        now = time.perf_counter() - begin
        for output in outputs:
            if output.outputs and output.outputs[0].token_ids:
                first.setdefault(output.request_id, now)
                last[output.request_id] = now
    ttft = [first[str(n)] - times[n] for n in range(len(times))]
    tpot = [(last[str(n)] - first[str(n)]) / max(lengths[n][1] - 1, 1) for n in range(len(times))]
    return percentile(ttft, 99), percentile(tpot, 50)


def measure_arena(
    workload: str = "documents", speed: float = 1.0, rate: float | None = None
) -> Measure:
    """Measures the real scheduler on the arena's clock, where threads change nothing.

    The story's requests arrive `speed` times as fast as it tells, or `rate` a second.
    """
    from labkit.arena.cost import DEFAULT, load_model
    from labkit.arena.simulator import simulate
    from labkit.arena.workloads import WORKLOADS
    from mini_vllm.core.scheduler import Scheduler

    world, cost = WORKLOADS[workload], load_model(DEFAULT)
    if rate is not None:
        story = list(world.arrivals(0, MANY))
        speed = rate * story[-1].time / len(story)

    def measure(settings: Settings, requests: int) -> tuple[float, float]:
        limits = replace(
            world.scheduler,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            max_num_seqs=settings.max_num_seqs,
            long_prefill_token_threshold=0,
        )
        story = world.arrivals(0, requests)
        arrivals = [replace(arrival, time=arrival.time / speed) for arrival in story]
        run = simulate(Scheduler, replace(world, scheduler=limits), arrivals, cost, check_every=0)
        ttft, tpot = [one.ttft for one in run.served], [one.tpot for one in run.served]
        return percentile(ttft, 99), percentile(tpot, 50)

    return measure


# ---------------------------------------------------------------- telling


HEAD = " requests  budget  seqs  threads   TTFT p99   TPOT p50   of the promise"


def row(one: Measured[Settings]) -> str:
    """A measurement as a line of the table."""
    return (
        f"{one.requests:>9} {one.config.row()} {one.ttft_p99:>8.3f} s "
        f"{1e3 * one.tpot_p50:>7.2f} ms {one.strain:>12.0%}"
    )


def verdict(best: Settings | None, last: Measured[Settings], tried: int) -> str:
    """The answer, also where it is none."""
    if best is not None:
        return f"best of {tried}: {best.words()}: {last.strain:.0%} of the promise is used up"
    return (
        f"none: no configuration of {tried} holds the promise. The nearest, {last.config.words()}, "
        f"takes {last.ttft_p99:.3f} s and {1e3 * last.tpot_p50:.2f} ms; promise less, or let fewer "
        "requests arrive"
    )


def beside_default(
    measure: Measure, settings: Settings, promise: Promise, requests: int, cores: int
) -> Comparison:
    """The strain of a configuration beside the default's, in turns."""
    other, old, new = default_settings(cores), [], []
    for _ in range(TURNS):
        old.append(promise.strain(*measure(other, requests)))
        new.append(promise.strain(*measure(settings, requests)))
    return compare_pairs(old, new)


def main(argv: Sequence[str]) -> int:
    """Search, and print every measurement. 1: no configuration holds the promise."""
    parser = argparse.ArgumentParser(prog="labkit tune", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="storyteller", help="folder or name (storyteller)")
    parser.add_argument(
        "--rate", type=float, help="requests a second (4; with --arena as its story has them)"
    )
    parser.add_argument("--ttft-p99", type=float, default=0.5, help="promised seconds (0.5)")
    parser.add_argument("--tpot-p50", type=float, default=0.02, help="promised seconds (0.02)")
    parser.add_argument("--requests", type=int, default=32, help="of the last round (32)")
    parser.add_argument("--arena", action="store_true", help="the arena's clock, no model")
    options = parser.parse_args(argv)
    for name in ("rate", "ttft_p99", "tpot_p50"):
        value = getattr(options, name)
        if value is not None and not 0 < value < math.inf:
            parser.error(f"--{name.replace('_', '-')} is {value:g}; it must be a number above 0")
    if options.requests < 4:
        parser.error(f"--requests is {options.requests}; it must be at least 4")
    promise = Promise(options.ttft_p99, options.tpot_p50)
    cores = 1 if options.arena else os.cpu_count() or 1
    if options.arena:
        measure = measure_arena(rate=options.rate)
    else:
        measure = measure_engine(options.model, options.rate or RATE)
    configs = grid(cores)
    if not options.arena and (busy := others()):
        print(f"note: {busy}; close other programs, or noise decides")
    print(f"promise: TTFT p99 {promise.ttft_p99} s, TPOT p50 {1e3 * promise.tpot_p50:g} ms")
    print(HEAD)
    least = max(4, options.requests // 8)
    found = successive_halving(
        configs, _told(measure, promise), promise, least=least, most=options.requests
    )
    last = next(one for one in reversed(found.measured) if one.config == found.nearest)
    print(verdict(found.best, last, len(configs)))
    if found.best is not None and found.best != default_settings(cores):
        told = beside_default(measure, found.best, promise, options.requests, cores)
        print(f"beside the default, {TURNS} pairs in turns: {told.says('of the promise')}")
    return 0 if found.best is not None else 1


def others() -> str:
    """What else the machine does, if that is much."""
    load, cores = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0, os.cpu_count() or 1
    return f"{load:.1f} programs want these {cores} cores" if load > 0.75 * cores else ""


def _told(measure: Measure, promise: Promise) -> Measure:
    """Print each measurement when it is made."""

    def tell(settings: Settings, requests: int) -> tuple[float, float]:
        ttft, tpot = measure(settings, requests)
        print(row(Measured(settings, requests, ttft, tpot, promise.strain(ttft, tpot))), flush=True)
        return ttft, tpot

    return tell


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
