"""Plans on their way: as many at once as there are pipeline stages, and two with late results.

::

    one plan at a time               two at a time
    stage 0   A . B . A .            stage 0   A B A B A B
    stage 1   . A . B . A            stage 1   . A B A B A

    host      p . u p . u            host      p p u p u p u        p: plan, u: update
    device    . A . . A .            device    . A A A A A A

A stage that waits for the others is idle, and so is a device that waits for Python. So the next
plan is sent before the answer to the last one is there. In a pipeline no plan may depend on that
answer; with late results the worker fills in the tokens that the scheduler does not know.

Source: vllm/v1/engine/core.py#L469-L585 (EngineCore.step_with_batch_queue) @ v0.22.1
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

from mini_vllm.core.scheduler_output import EngineCoreOutput, ModelRunnerOutput, SchedulerOutput
from mini_vllm.request import Request

R = TypeVar("R")


@dataclass(slots=True)
class Batch:
    """A plan that the workers have, and the answer that is to come."""

    plan: SchedulerOutput
    answer: Future[ModelRunnerOutput]
    hopeless: list[EngineCoreOutput]
    """Outputs of requests that ended when the plan was made."""
    started: float
    """On the performance counter."""
    scheduled_at: float
    """On the monotonic clock."""
    requests: dict[str, Request] = field(default_factory=dict)
    """The plan's requests, by id. When the answer comes, an id may belong to another request."""
    is_deferred: bool = False
    """Whether it is executed and not sampled yet, because a grammar needs an earlier answer."""


def step_with_batch_queue(
    queue: deque[Batch],
    size: int,
    has_requests: Callable[[], bool],
    submit: Callable[[], Batch],
    finish: Callable[[Batch], R],
) -> R | None:
    """One step of an engine that keeps up to ``size`` plans on their way.

    The queue's left end is the newest plan, its right end the oldest.

    1. If there are requests, and room in the queue, submit a plan. If it has tokens, there is
       still room, and the oldest answer is not there yet, return at once: filling the pipeline
       comes before waiting. A plan without tokens is sent, too, because it names the finished
       requests to the workers.
    2. Otherwise take the oldest plan out and finish it, which waits for its answer. Also when
       there are no requests any more: the queue is emptied to the end.

    What ``submit`` or ``finish`` raises is raised on. A plan that could not be submitted is not in
    the queue, and one that could not be finished is out of it: it is not finished a second time.

    Returns:
        What ``finish`` returns; None if nothing was finished.

    Source: vllm/v1/engine/core.py#L469-L585 (EngineCore.step_with_batch_queue) @ v0.22.1
    """
    # TODO 10.10
    raise NotImplementedError(
        "TODO 10.10: write step_with_batch_queue in labs/10-distributed/batch_queue.py"
        " (phase 10, 02-mini-build.md#task-10)"
    )


def new_token_ids(plan: SchedulerOutput, requests: Mapping[str, Request]) -> dict[str, list[int]]:
    """The tokens that a plan computes of requests that the workers have: only the last stage has
    sampled them, so the plan brings them to the others.

    They are the requests of ``plan.scheduled_cached_reqs``. Of one that is resumed the plan has all
    tokens already, so it is left out.

    Source: vllm/v1/core/sched/scheduler.py#L1061-L1071 (Scheduler._make_cached_request_data)
    @ v0.22.1
    """
    # TODO 10.10
    raise NotImplementedError(
        "TODO 10.10: write new_token_ids in labs/10-distributed/batch_queue.py"
        " (phase 10, 02-mini-build.md#task-10)"
    )
