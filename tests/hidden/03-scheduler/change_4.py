"""Change request 4, over random lines: a request with blocks and budget gets tokens."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.extension import SchedulerExtension
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.step_plan import StepPlan
from mini_vllm.request import Request, RequestStatus
from mini_vllm.sampling_params import SamplingParams


class Lacks(SchedulerExtension):
    def __init__(self, names: set[str]) -> None:
        self.names = names

    def limit_tokens(self, request: Any, num_computed_tokens: int, num_new_tokens: int) -> int:
        return 0 if request.request_id in self.names else num_new_tokens


def line(seed: int) -> tuple[Scheduler, set[str]]:
    """Running requests that fill the pool; some lack something else."""
    rng = Random(seed)
    sizes = [rng.randint(1, 3) for _ in range(rng.randint(3, 6))]
    names = [f"r{index}" for index in range(len(sizes))]
    lacking = {name for name in names if rng.random() < 0.4}
    config = SchedulerConfig(64, 16, 256, "priority")
    extensions = (Lacks(lacking),)
    scheduler = Scheduler(config, CacheConfig(4, 1 + sum(sizes)), extensions, b"root")
    for index, (name, size) in enumerate(zip(names, sizes, strict=True)):
        tokens = 4 * size - rng.choice((0, 0, 1))
        prompt = [1000 * index + i for i in range(tokens)]
        params = SamplingParams(temperature=0.0, max_tokens=50)
        request = Request(name, prompt, params, rng.randint(0, 4), float(index))
        scheduler.requests[name] = request
        request.set_block_hasher(scheduler.kv_cache_manager.block_hasher)
        request.append_output_token_ids(7)
        assert scheduler.kv_cache_manager.allocate_slots(request, tokens) is not None
        request.num_computed_tokens = tokens
        request.transition_to(RequestStatus.RUNNING)
        scheduler.running.append(request)
    return scheduler, lacking


@pytest.mark.parametrize("seed", range(60))
def test_change_4_every_running_request_was_looked_at(seed: int) -> None:
    scheduler, lacking = line(seed)
    step = StepPlan(64)
    scheduler._schedule_running(step)
    own_victim = step.preempted and step.preempted[-1].request_id not in lacking
    left = {r.request_id for r in scheduler.running} - lacking - set(step.num_scheduled_tokens)
    assert not left or own_victim  # a request that is its own victim ends the pass
    scheduler.check_integrity()
