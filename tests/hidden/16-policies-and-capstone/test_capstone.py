"""The capstone: the learner's policy plans in its sandbox; clock, referee and promises are here."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, cast

import pytest

from labkit.arena.cost import load_model
from labkit.arena.metrics import Figures, figures
from labkit.arena.remote import RemoteScheduler
from labkit.arena.simulator import simulate
from labkit.arena.workloads import WORKLOADS
from labkit.process.worker import Program
from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.scheduler import Scheduler

CAPSTONE = "mini_vllm.policies.capstone:Capstone"
RACES, REQUESTS = 6, 200
PLENTY = 0.9
"""Where V1 serves a larger share in time there is little to win, and such a race says little. Over
60 seeds V1 stays at or below it under 22, and there the reference is 13 % better; over all 60 it
is 5 % better. Among 10,000 draws of six of the 22 the least ratio was 1.050."""


def race(make: Callable[..., Any], name: str, seed: int, requests: int, every: int) -> Figures:
    """Serve a workload; RuleBroken if a plan cannot be carried out or a request is not served."""
    workload, cost = WORKLOADS[name], load_model()
    run = simulate(make, workload, workload.arrivals(seed, requests), cost, every)
    return figures(run, workload, cost)


def remote(subject: Any) -> Callable[[SchedulerConfig, CacheConfig], Scheduler]:
    """Makes the learner's policy, in its sandbox."""
    return lambda *limits: cast(Scheduler, RemoteScheduler(subject, CAPSTONE, *limits))


@pytest.fixture(scope="module")
def draw(request: Any) -> random.Random:
    """Seeds made from the grade's own, so that a grade repeats."""
    return random.Random(f"capstone:{request.config.getoption('hypothesis_seed', None) or 0}")


@pytest.fixture(scope="module")
def ratio(subject: Any, draw: random.Random) -> tuple[float, str]:
    """Goodput over all races by that of V1, and both as text."""
    yours, theirs = [], []
    while len(yours) < RACES:
        seed = draw.randrange(2**31)
        baseline = race(Scheduler, "documents", seed, REQUESTS, 0)
        if baseline.within_slo <= PLENTY:
            theirs.append(baseline.goodput)
            yours.append(race(remote(subject), "documents", seed, REQUESTS, 50).goodput)
    text = f"yours {[round(g, 2) for g in yours]}, V1's {[round(g, 2) for g in theirs]}"
    return sum(yours) / sum(theirs), text


@pytest.mark.parametrize("name", ["documents", "pressure", "priorities", "chat"])
def test_16_6_every_rule_is_kept(subject: Any, draw: random.Random, name: str) -> None:
    """Every step is checked, on four workloads."""
    served = race(remote(subject), name, draw.randrange(2**31), 40, 1).requests
    assert served == 40


def test_16_6_limits_only_tighten(subject: Any, draw: random.Random) -> None:
    """For any machine, every second a small one: no limit wider, nothing else changed."""
    p = Program()
    for most in [64, 4096] * 15:
        budget, rows = draw.randint(1, most), draw.randint(1, 256)
        length, threshold = draw.randint(1, 4096), draw.choice([0, 1, 64, 512])
        policy, chunked = draw.choice(["fcfs", "priority"]), draw.choice([True, False])
        limits = budget, rows, length, policy, threshold, chunked
        config = p.new("mini_vllm.config:SchedulerConfig", *limits)
        p.see(p.call("dataclasses:asdict", config))
        yours = p.call(f"{CAPSTONE}.limits", config)
        p.see(p.call("dataclasses:asdict", yours))
        p.see(p.call("dataclasses:asdict", config))
    seen = subject.run(p)
    assert len(seen) == 90, seen[-1:]
    for given, yours, config in zip(seen[::3], seen[1::3], seen[2::3], strict=True):
        assert config == given, "the configuration that was handed over has changed"
        tighter = ["max_num_seqs", "max_model_len"]
        if config["enable_chunked_prefill"]:  # or a long prompt fits into no step
            tighter.append("max_num_batched_tokens")
        for key in tighter:
            assert 1 <= yours.pop(key) <= config.pop(key), key
        mine, most = (c.pop("long_prefill_token_threshold") for c in (yours, config))
        assert mine >= 0 and (most == 0 or 0 < mine <= most), "long_prefill_token_threshold"
        assert yours == config


def test_16_6_more_requests_in_time_than_v1(ratio: tuple[float, str], subject: Any) -> None:
    """Six fresh races of `documents` that V1 finds hard: goodput above V1's."""
    assert ratio[0] > 1.0, f"ratio {ratio[0]:.3f}: {ratio[1]}"


def test_16_6_three_in_a_hundred_more(ratio: tuple[float, str], subject: Any) -> None:
    """The same races: goodput at least 3 % above V1's."""
    assert ratio[0] > 1.03, f"ratio {ratio[0]:.3f}: {ratio[1]}"


def test_16_6_a_real_model_says_the_same(subject: Any, draw: random.Random) -> None:
    """The real engine with your scheduler: the order of service changes, and no token does."""
    prompts = [[draw.randint(1, 1000) for _ in range(draw.choice([5, 40, 180]))] for _ in range(7)]

    for package in ("torch", "mini_vllm.engine.parts.features", "mini_vllm.engine.llm"):
        warm = Program()  # an import is an answer of its own, with a time of its own
        warm.call("importlib:import_module", package)
        subject.run(warm)

    def serve(scheduler: str) -> list[list[int]]:
        p = Program()
        llm = p.new(
            "mini_vllm.engine.llm:LLM", "storyteller-draft", scheduler_cls=p.name(scheduler),
            skip_tokenizer_init=True, dtype="float32", block_size=16, num_gpu_blocks=24,
            max_num_batched_tokens=128, max_num_seqs=4, max_model_len=256,
        )  # fmt: skip
        params = p.new(
            "mini_vllm.sampling_params:SamplingParams", temperature=0.0, max_tokens=12,
            ignore_eos=True,
        )  # fmt: skip
        outputs = llm.generate(prompts, params, use_tqdm=False)
        for index in range(len(prompts)):
            p.see(outputs[index].outputs[0].token_ids)
        return [list(tokens) for tokens in subject.run(p)]

    yours, theirs = serve(CAPSTONE), serve("mini_vllm.core.scheduler:Scheduler")
    assert [len(tokens) for tokens in theirs] == [12] * len(prompts), theirs[-1:]
    assert yours == theirs
