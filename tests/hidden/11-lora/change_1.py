"""Change request 1: through the scheduler, with several that wait, and one that is aborted."""

from __future__ import annotations

from random import Random

import pytest

from mini_vllm.config import CacheConfig, LoRAConfig, SchedulerConfig
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.lora.scheduling import LoRASchedulerExtension
from mini_vllm.request import Request, RequestStatus
from mini_vllm.sampling_params import SamplingParams


def start(max_loras: int) -> tuple[Scheduler, LoRASchedulerExtension]:
    gate = LoRASchedulerExtension(LoRAConfig(max_loras=max_loras))
    scheduler = Scheduler(SchedulerConfig(256, 16, 128, "fcfs"), CacheConfig(4, 400), (gate,))
    return scheduler, gate


def add(scheduler: Scheduler, name: str, adapter: str | None, max_tokens: int = 4) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    scheduler.add_request(Request(name, [1, 2, 3], params, lora_name=adapter))


def step(scheduler: Scheduler) -> set[str]:
    plan = scheduler.schedule()
    scheduler.update_from_output(plan, {name: [7] for name in plan.num_scheduled_tokens})
    return set(plan.num_scheduled_tokens)


@pytest.mark.parametrize("seed", range(12))
def test_change_1_a_stream_starves_no_adapter(seed: int) -> None:
    """One new request of adapter a in every step; two others come once and are served."""
    rng = Random(seed)
    scheduler, _ = start(max_loras=1)
    add(scheduler, "first", "a")
    served: dict[str, int] = {}
    for number in range(60):
        add(scheduler, f"a{number}", "a", rng.randint(2, 5))
        if number == 2:
            add(scheduler, "b", "b")
            add(scheduler, "c", "c")
        for name in step(scheduler) & {"b", "c"}:
            served.setdefault(name, number)
    assert served.keys() == {"b", "c"} and served["b"] < served["c"]
    assert served["b"] <= 2 + 8 + 6, served


def test_change_1_an_aborted_request_does_not_close_the_gate() -> None:
    scheduler = start(max_loras=1)[0]
    add(scheduler, "a", "a", max_tokens=60)
    add(scheduler, "b", "b")
    for _ in range(12):
        step(scheduler)
    add(scheduler, "more", "a")
    assert "more" not in step(scheduler)
    scheduler.finish_requests("b", RequestStatus.FINISHED_ABORTED)
    assert "more" in step(scheduler)


def test_change_1_two_do_not_wait_for_each_other() -> None:
    gate = start(max_loras=1)[1]
    running = [Request("a", [1], lora_name="a")]
    others = [Request(name, [1], lora_name=name) for name in ("b", "c")]
    for _ in range(20):
        assert not any(gate.may_admit(other, running) for other in others)
    assert [gate.may_admit(other, []) for other in others[::-1]] == [False, True]


def test_change_1_an_admitted_request_starts_anew() -> None:
    gate = start(max_loras=1)[1]
    running, mine = [Request("a", [1], lora_name="a")], Request("b", [1], lora_name="b")
    for _ in range(8):
        gate.may_admit(mine, running)
    assert gate.may_admit(mine, [])
    for _ in range(7):
        assert not gate.may_admit(mine, running)
        assert gate.may_admit(Request("a2", [1], lora_name="a"), running)
