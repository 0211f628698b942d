"""Change request 3, over random limits and lines."""

from __future__ import annotations

from random import Random

import pytest

from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams


@pytest.mark.parametrize("seed", range(40))
def test_change_3_the_first_step_of_a_line(seed: int) -> None:
    rng = Random(seed)
    budget, threshold = rng.randint(4, 64), rng.choice((0, 1, 3, 4, 9))
    count = rng.choice((1, 1, 2, 3, 5, 9))
    config = SchedulerConfig(budget, 16, 256, long_prefill_token_threshold=threshold)
    scheduler = Scheduler(config, CacheConfig(4, 401), (), b"root")
    lengths = [rng.randint(1, 80) for _ in range(count)]
    for index, length in enumerate(lengths):
        prompt = [1000 * index + i for i in range(length)]
        params = SamplingParams(temperature=0.0, max_tokens=5)
        scheduler.add_request(Request(f"r{index}", prompt, params, 0, float(index)))
    cap = 10**9 if threshold == 0 or count == 1 else max(threshold, budget // count)
    expected: dict[str, int] = {}
    for index, length in enumerate(lengths):
        tokens = min(length, cap, budget - sum(expected.values()))
        if tokens:
            expected[f"r{index}"] = tokens
    assert scheduler.schedule().num_scheduled_tokens == expected


def test_change_3_the_last_one_left_is_alone() -> None:
    config = SchedulerConfig(16, 4, 256, long_prefill_token_threshold=4)
    scheduler = Scheduler(config, CacheConfig(4, 101), (), b"root")
    for name, length in (("a", 40), ("b", 4)):
        params = SamplingParams(temperature=0.0, max_tokens=1)
        prompt = [ord(name) * 1000 + i for i in range(length)]
        scheduler.add_request(Request(name, prompt, params, 0, 0.0))
    plan = scheduler.schedule()
    assert plan.num_scheduled_tokens == {"a": 8, "b": 4}
    scheduler.update_from_output(plan, {"b": [7]})
    assert scheduler.schedule().num_scheduled_tokens == {"a": 16}
