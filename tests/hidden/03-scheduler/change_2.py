"""Change request 2, over random lines of requests."""

from __future__ import annotations

from random import Random

import pytest

from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams


def scheduler_of(rows: int, policy: str = "fcfs") -> Scheduler:
    config = SchedulerConfig(256, rows, 256, policy)  # type: ignore[arg-type]
    return Scheduler(config, CacheConfig(4, 301), (), b"root")


def ask(scheduler: Scheduler, name: str, priority: int) -> None:
    prompt = [sum(name.encode()) * 1000 + i for i in range(3)]
    params = SamplingParams(temperature=0.0, max_tokens=50)
    number = int(name[1:])
    scheduler.add_request(Request(name, prompt, params, priority, float(number)))


@pytest.mark.parametrize("seed", range(30))
def test_change_2_which_requests_are_admitted(seed: int) -> None:
    rng = Random(seed)
    rows, line = rng.randint(1, 5), [rng.choice((-1, 0, 0, 2)) for _ in range(8)]
    scheduler = scheduler_of(rows)
    for index, priority in enumerate(line):
        ask(scheduler, f"r{index}", priority)
    admitted = list(scheduler.schedule().num_scheduled_tokens)
    expected: list[str] = []
    for index, priority in enumerate(line):
        free = rows - len(expected)
        if free >= 2 or (free == 1 and (priority < 0 or rows == 1)):
            expected.append(f"r{index}")
    assert admitted == expected


def test_change_2_a_skipped_request_keeps_its_place() -> None:
    scheduler = scheduler_of(2)
    for index, priority in enumerate((0, 0, 0, -1)):
        ask(scheduler, f"r{index}", priority)
    assert list(scheduler.schedule().num_scheduled_tokens) == ["r0", "r3"]
    waiting = [r.request_id for r in (*scheduler.skipped_waiting, *scheduler.waiting)]
    assert waiting == ["r1", "r2"]
    scheduler.check_integrity()
