"""Stories for the hidden tests of phase 16: a scheduler serves one in its sandbox, step by step,
and the referee carries its plans out here."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from labkit.arena.referee import Referee, RuleBroken
from labkit.arena.remote import RemoteScheduler
from labkit.process.worker import Worker
from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams

MAX_STEPS = 600
V0 = "mini_vllm.policies.vllm_v0"


@dataclass
class Story:
    """Which requests arrive at which step, and the limits of the engine that serves them."""

    target: str
    limits: SchedulerConfig
    cache: CacheConfig
    arrivals: dict[int, list[Request]]
    options: Mapping[str, Any] = field(default_factory=dict)


def person(name: str, prompt: list[int], answer: int, priority: int, time: float) -> Request:
    return Request(name, prompt, SamplingParams(temperature=0.0, max_tokens=answer), priority, time)


def prompts_first(seed: int) -> Story:
    """MinivLLM, a small cache, and prompts that share what they begin with."""
    draw = random.Random(seed)
    shared = [list(range(100 * i, 100 * i + 12)) for i in range(3)]
    arrivals: dict[int, list[Request]] = {}
    for number in range(14):
        own = [5000 + 50 * number + i for i in range(draw.randint(1, 8))]
        prompt = draw.choice(shared)[: draw.choice([0, 4, 9, 12])] + own
        request = person(f"r{number}", prompt, draw.choice([1, 5, 14]), 0, float(number))
        arrivals.setdefault(draw.randrange(20), []).append(request)
    limits = SchedulerConfig(draw.choice([36, 44, 60]), draw.randint(2, 6), 64)
    cache = CacheConfig(4, draw.randint(11, 20) + 1, draw.random() < 0.8)
    return Story("mini_vllm.policies.prefill_first:MinivLLM", limits, cache, arrivals)


def groups(seed: int, policy: str, mode: str) -> Story:
    """V0 and groups of up to four completions, in a pool for about two groups."""
    draw = random.Random(seed)
    arrivals: dict[int, list[Request]] = {}
    for number in range(6):
        prompt = [1000 * number + i for i in range(draw.randint(1, 17))]
        priority, step = draw.randrange(3), draw.randrange(24)
        arrivals.setdefault(step, []).extend(
            person(f"{i}_{number}", prompt, draw.choice([2, 9, 20]), priority, float(number))
            for i in range(draw.randint(1, 4))
        )
    limits = SchedulerConfig(48, 8, 40, policy)  # type: ignore[arg-type]
    host = draw.choice([6, 40, 40])
    cache = CacheConfig(4, draw.choice([14, 18, 24]), draw.random() < 0.5, num_cpu_blocks=host)
    options = {"watermark": 0.0, "preemption_mode": f"{V0}:PreemptionMode.{mode}"}
    return Story(f"{V0}:VllmV0", limits, cache, arrivals, options)


def serve(worker: Worker, story: Story) -> list[dict[str, Any]]:
    """What is decided in each step: which get tokens, which go, and how many blocks move.

    Raises:
        RuleBroken: a plan cannot be carried out, or a request would read what is not its own.
    """
    scheduler = RemoteScheduler(worker, story.target, story.limits, story.cache, story.options)
    referee = Referee(story.limits, story.cache)
    requests: dict[str, Request] = {}
    decisions: list[dict[str, Any]] = []
    for step in range(MAX_STEPS):
        for source in story.arrivals.get(step, []):
            request = person(
                source.request_id, source.prompt_token_ids, source.max_tokens or 1,
                source.priority, source.arrival_time,
            )  # fmt: skip
            requests[request.request_id] = request
            referee.add(request.request_id, request.prompt_token_ids)
            scheduler.add_request(request)
        if not scheduler.requests and step > max(story.arrivals):
            return decisions
        plan = scheduler.schedule()
        referee.watch(plan, cast(Scheduler, scheduler))
        decisions.append(_decision(plan, scheduler))
        sampled = {}
        for name in plan.num_scheduled_tokens:
            request = requests[name]
            if request.num_computed_tokens >= request.num_tokens:
                token = 100_000 + 100 * ord(name[0]) + request.num_tokens  # members differ
                sampled[name] = [token]
                referee.append(name, token)
        scheduler.update_from_output(plan, sampled)
    raise RuleBroken(f"after {MAX_STEPS} steps {sorted(scheduler.requests)} are not served")


def _decision(plan: Any, scheduler: RemoteScheduler) -> dict[str, Any]:
    return {
        "tokens": plan.num_scheduled_tokens,
        "preempted": sorted(plan.preempted_req_ids),
        "resumed": plan.scheduled_cached_reqs.resumed_req_ids,
        "moved": [len(plan.blocks_to_swap_out), len(plan.blocks_to_swap_in)],
        "copied": len(plan.blocks_to_copy),
        "free_blocks": scheduler.kv_cache_manager.num_free_blocks,
    }


def compare(subject: Worker, reference: Worker, story: Story) -> None:
    """Both serve the story; the first step in which they decide otherwise is an error."""
    theirs, yours = serve(reference, story), serve(subject, story)
    for step, (mine, other) in enumerate(zip(yours, theirs, strict=False)):
        parts = [key for key in other if mine[key] != other[key]]
        assert not parts, f"step {step}: {', '.join(parts)} differ"
    assert len(yours) == len(theirs)


@pytest.fixture
def stories(subject: Any, reference: Any) -> SimpleNamespace:
    """The stories by name, and `compare` for the two workers."""

    def check(story: Story) -> None:
        compare(subject, reference, story)

    made: dict[str, Callable[..., Any]] = {"prompts_first": prompts_first, "groups": groups}
    return SimpleNamespace(check=check, **made)
