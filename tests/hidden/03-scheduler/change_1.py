"""Change request 1, over random running lists and through a whole step."""

from __future__ import annotations

from random import Random

import pytest

from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.request import Request, RequestStatus
from mini_vllm.sampling_params import SamplingParams


def scheduler_of(policy: str, blocks: int = 300) -> Scheduler:
    config = SchedulerConfig(64, 16, 256, policy)  # type: ignore[arg-type]
    return Scheduler(config, CacheConfig(4, blocks + 1), (), b"root")


def start(scheduler: Scheduler, name: str, computed: int, priority: int = 0) -> Request:
    prompt = [sum(name.encode()) * 1000 + i for i in range(computed + 1)]
    params = SamplingParams(temperature=0.0, max_tokens=8)
    request = Request(name, prompt, params, priority, float(len(scheduler.running)))
    scheduler.add_request(request)
    scheduler.waiting.remove_requests([request])
    assert scheduler.kv_cache_manager.allocate_slots(request, computed) is not None
    request.num_computed_tokens = computed
    request.transition_to(RequestStatus.RUNNING)
    scheduler.running.append(request)
    return request


@pytest.mark.parametrize("seed", range(30))
def test_change_1_the_least_work_is_lost(seed: int) -> None:
    rng = Random(seed)
    scheduler = scheduler_of("fcfs")
    tokens = [rng.randint(1, 6) for _ in range(rng.randint(1, 7))]
    for index, computed in enumerate(tokens):
        start(scheduler, f"r{index}", computed, rng.randint(-2, 2))
    last = max(i for i, computed in enumerate(tokens) if computed == min(tokens))
    assert scheduler._pick_victim().request_id == f"r{last}"
    assert [request.request_id for request in scheduler.running] == [
        f"r{i}" for i in range(len(tokens))
    ]


@pytest.mark.parametrize("seed", range(10))
def test_change_1_priority_is_as_before(seed: int) -> None:
    rng = Random(seed)
    scheduler = scheduler_of("priority")
    drawn = [(rng.randint(-2, 2), rng.randint(1, 6)) for _ in range(5)]
    for index, (priority, computed) in enumerate(drawn):
        start(scheduler, f"r{index}", computed, priority)
    worst = max(range(5), key=lambda i: (drawn[i][0], i))
    assert scheduler._pick_victim().request_id == f"r{worst}"


def test_change_1_in_a_step() -> None:
    """Three need a block each and one is free: the one that loses least gives up its own turn."""
    scheduler = scheduler_of("fcfs", blocks=7)
    large, small, middle = (start(scheduler, n, c) for n, c in (("a", 12), ("b", 4), ("c", 8)))
    plan = scheduler.schedule()
    assert list(plan.preempted_req_ids) == ["b"]
    assert "a" in plan.num_scheduled_tokens and small.num_computed_tokens == 0
    assert scheduler.running == [large, middle]
    scheduler.check_integrity()
