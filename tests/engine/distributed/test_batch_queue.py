"""Plans on their way, with an executor that answers when it is told to."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from typing import Any

from mini_vllm.core.scheduler_output import CachedRequestData, SchedulerOutput
from mini_vllm.engine.batch_queue import Batch, new_token_ids, step_with_batch_queue
from mini_vllm.request import Request
from mini_vllm.sampling_params import SamplingParams


def plan(**num_scheduled: int) -> SchedulerOutput:
    cached = CachedRequestData([], [], set(), {})
    return SchedulerOutput(
        [], cached, num_scheduled, sum(num_scheduled.values()), {}, {}, [], set()
    )


class Engine:
    """Plans `sizes[i]` tokens in step i, and finishes in the order of the plans."""

    def __init__(self, *sizes: int, depth: int = 2) -> None:
        self.sizes, self.depth = list(sizes), depth
        self.queue: deque[Batch] = deque()
        self.log: list[str] = []
        self.number = 0

    def submit(self) -> Batch:
        size = self.sizes.pop(0)
        self.log.append(f"submit {self.number}")
        answer: Future[Any] = Future()
        batch = Batch(plan(a=size) if size else plan(), answer, [], float(self.number), 0.0)
        self.number += 1
        return batch

    def finish(self, batch: Batch) -> str:
        self.log.append(f"finish {batch.started:.0f}")
        return self.log[-1]

    def step(self) -> str | None:
        return step_with_batch_queue(
            self.queue, self.depth, lambda: bool(self.sizes), self.submit, self.finish
        )


def test_alone_every_plan_is_finished_in_its_own_step() -> None:
    engine = Engine(1, 1, depth=1)
    assert [engine.step(), engine.step(), engine.step()] == ["finish 0", "finish 1", None]


def test_filling_comes_before_waiting_and_the_queue_is_emptied() -> None:
    engine = Engine(1, 1, 1, depth=2)
    assert engine.step() is None
    assert [engine.step() for _ in range(3)] == ["finish 0", "finish 1", "finish 2"]
    assert engine.step() is None and not engine.queue
    assert engine.log[:4] == ["submit 0", "submit 1", "finish 0", "submit 2"]


def test_an_answer_that_is_there_is_taken_at_once() -> None:
    engine = Engine(1, 1, 1, 1, depth=4)
    assert engine.step() is None
    engine.queue[-1].answer.set_result(None)  # type: ignore[arg-type]
    assert engine.step() == "finish 0"


def test_a_plan_without_tokens_goes_on_its_way_and_waits_for_the_oldest() -> None:
    engine = Engine(1, 0, depth=3)
    assert engine.step() is None
    assert engine.step() == "finish 0"
    assert engine.log == ["submit 0", "submit 1", "finish 0"]
    assert engine.step() == "finish 1"


def test_a_plan_brings_the_tokens_that_it_computes() -> None:
    requests = {}
    for name in "abc":
        requests[name] = Request(name, [1, 2, 3], SamplingParams(max_tokens=9))
        for token in (7, 8):
            requests[name].append_output_token_ids(token)
    cached = CachedRequestData(["a", "b", "c"], [1, 4, 0], {"c"}, {"c": [1, 2, 3, 7, 8]})
    step = plan(a=2, b=1, c=5)
    step.scheduled_cached_reqs = cached
    assert new_token_ids(step, requests) == {"a": [2, 3], "b": [8]}
