"""Change request 5, over random loads with one plan more on its way."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams

NEUTRAL: dict[str, float] = {
    "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0
}  # fmt: skip
PENALTIES = (
    {"repetition_penalty": 0.8}, {"repetition_penalty": 1.1}, {"presence_penalty": -1.0},
    {"presence_penalty": 0.1}, {"frequency_penalty": -0.1}, {"frequency_penalty": 2.0},
)  # fmt: skip


def load(rng: Random, share: float) -> list[Request]:
    requests = []
    for index in range(rng.randint(2, 7)):
        penalty = rng.choice(PENALTIES) if rng.random() < share else {}
        params = SamplingParams(max_tokens=rng.randint(1, 9), **(NEUTRAL | penalty))
        prompt = [1000 * index + i for i in range(rng.randint(1, 14))]
        requests.append(Request(f"r{index}", prompt, params, rng.randint(0, 2), float(index), 2))
    return requests


def reads_output(request: Request) -> bool:
    return any(getattr(request.sampling_params, name) != NEUTRAL[name] for name in NEUTRAL)


def run(seed: int, share: float) -> list[dict[str, int]]:
    """The plans of a load, each made before the answer to the one before; all of it is checked."""
    rng = Random(seed)
    config = SchedulerConfig(
        rng.choice((4, 8, 32)), rng.randint(2, 4), 64, rng.choice(("fcfs", "priority")),
        long_prefill_token_threshold=rng.choice((0, 3)), async_scheduling=True,
    )  # fmt: skip
    scheduler = Scheduler(config, CacheConfig(4, rng.randint(8, 14)), (), b"root")
    requests = load(rng, share)
    for request in requests:
        scheduler.add_request(request)
    plans: list[dict[str, int]] = []
    on_its_way: Any = None
    while scheduler.has_unfinished_requests():
        assert len(plans) < 1000, "the requests do not end"
        waiting = {
            r.request_id: r.num_computed_tokens >= r.num_tokens
            for r in scheduler.running
        }  # fmt: skip
        known = {r.request_id: r for r in requests}
        plan = scheduler.schedule()
        plans.append(dict(plan.num_scheduled_tokens))
        for name in plan.num_scheduled_tokens:
            assert not (waiting.get(name) and reads_output(known[name])), f"{name} has to wait"
        sampled = [
            r.request_id
            for r in scheduler.running
            if r.request_id in plan.num_scheduled_tokens and r.num_output_placeholders
        ]
        if on_its_way is not None:
            due, names = on_its_way
            live = [name for name in names if name in scheduler.requests]
            scheduler.update_from_output(due, {name: [5] for name in live})
            scheduler.check_integrity()
        on_its_way = (plan, sampled)
    assert all(r.num_output_tokens == r.max_tokens for r in requests)
    return plans


@pytest.mark.parametrize("seed", range(40))
def test_change_5_a_request_that_reads_its_output_waits(seed: int) -> None:
    run(seed, 0.5)


@pytest.mark.parametrize("seed", range(10))
def test_change_5_others_have_a_token_in_every_plan(seed: int) -> None:
    """Without penalties, one request alone: a token a plan until it ends, then one empty plan."""
    config = SchedulerConfig(16, 4, 64, async_scheduling=True)
    scheduler = Scheduler(config, CacheConfig(4, 17), (), b"root")
    params = SamplingParams(max_tokens=2 + seed, **NEUTRAL)
    scheduler.add_request(Request("r0", [1, 2, 3], params))
    plans = [scheduler.schedule()]
    while scheduler.has_unfinished_requests():
        plans.append(scheduler.schedule())
        due = plans[-2]
        scheduler.update_from_output(due, {"r0": [5]} if due.num_scheduled_tokens else {})
    tokens = [plan.num_scheduled_tokens.get("r0", 0) for plan in plans]
    assert tokens == [3] + [1] * (1 + seed) + [0]
