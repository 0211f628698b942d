"""Replay a trace on a scheduler: mini_vllm's, one of your own, the learner's, or vLLM's.

`replay` walks through the events and owns nothing but the order of things. What differs between
schedulers is in a `Subject`: how to add and abort a request, and what one step looks like.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from labkit.trace.format import (
    STEP_FIELDS,
    Abort,
    Add,
    Drain,
    Step,
    Trace,
    TraceConfig,
    prompt_tokens,
    sample_token,
)

Line = dict[str, Any]


class Subject(Protocol):
    """A scheduler under replay."""

    def add(self, event: Add, prompt_token_ids: list[int]) -> None:
        """Hand a new request to the scheduler."""

    def abort(self, request_id: str) -> bool:
        """Abort a request; False if it is unknown or has finished."""

    def step(self) -> Line:
        """schedule(), the pretended model, update_from_output(): all keys but step and aborted."""

    def has_unfinished(self) -> bool:
        """Whether any request is running or waiting."""


def replay(trace: Trace, subject: Subject) -> Iterator[Line]:
    """Yield one line for every step of the trace, in the order of `STEP_FIELDS`."""
    aborted: list[str] = []
    number = 0
    for event in trace.events:
        if isinstance(event, Add):
            subject.add(event, prompt_tokens(event.prompt, trace.config.vocab_size))
        elif isinstance(event, Abort):
            aborted += [event.id] if subject.abort(event.id) else []
        for _ in _steps(event, subject):
            line = {"step": number} | subject.step() | {"aborted": aborted}
            yield {key: line[key] for key in STEP_FIELDS}
            aborted, number = [], number + 1


def _steps(event: Any, subject: Subject) -> Iterator[int]:
    """Count the steps an event asks for, looking at the scheduler before each one of a drain."""
    if isinstance(event, Step):
        yield from range(event.n)
    if isinstance(event, Drain):
        for index in range(event.max):
            if not subject.has_unfinished():
                return
            yield index


def ordered_blocks(
    new_block_ids: dict[str, list[int]], scheduled: Iterable[str]
) -> dict[str, list[int]]:
    """Block ids in the order of scheduling, without the requests that got none."""
    order = [i for i in scheduled if i in new_block_ids]
    order += [i for i in new_block_ids if i not in set(order)]
    return {i: list(new_block_ids[i]) for i in order if new_block_ids[i]}


def end_reason(finished_reason: str | None, stop_reason: int | str | None) -> int | str | None:
    """Why a request ended: the stop token or a name if there is one, else "stop" or "length"."""
    return finished_reason if stop_reason is None else stop_reason


class ReferenceSubject:
    """mini_vllm's scheduler, or any class with the same interface.

    It keeps the `Request` objects itself and asks the scheduler only for what its interface
    promises: `schedule`, `update_from_output`, `finish_requests`, `running`, `waiting` and
    `kv_cache_manager.num_free_blocks`. So it can replay on a learner's half-finished class too.
    """

    def __init__(self, config: TraceConfig, scheduler_class: Callable[..., Any] | None = None):
        from mini_vllm.config import CacheConfig, SchedulerConfig

        if scheduler_class is None:
            from mini_vllm.core.scheduler import Scheduler

            scheduler_class = Scheduler
        self.config = config
        self.requests: dict[str, Any] = {}
        self.scheduler = scheduler_class(
            SchedulerConfig(
                max_num_batched_tokens=config.max_num_batched_tokens,
                max_num_seqs=config.max_num_seqs,
                max_model_len=config.max_model_len,
                policy=config.policy,  # type: ignore[arg-type]
                long_prefill_token_threshold=config.long_prefill_token_threshold,
                enable_chunked_prefill=config.enable_chunked_prefill,
                scheduler_reserve_full_isl=config.scheduler_reserve_full_isl,
                uncache_refunded_blocks=config.uncache_refunded_blocks,
            ),
            CacheConfig(
                block_size=config.block_size,
                num_gpu_blocks=config.num_gpu_blocks,
                enable_prefix_caching=config.enable_prefix_caching,
            ),
        )

    def add(self, event: Add, prompt_token_ids: list[int]) -> None:
        from mini_vllm.request import Request
        from mini_vllm.sampling_params import SamplingParams

        params = SamplingParams(
            temperature=0.0,
            max_tokens=event.max_tokens,
            min_tokens=event.min_tokens,
            stop_token_ids=list(event.stop_token_ids),
            ignore_eos=event.ignore_eos,
        )
        request = Request(
            event.id,
            prompt_token_ids=prompt_token_ids,
            sampling_params=params,
            priority=event.priority,
            arrival_time=float(event.arrival),
            eos_token_id=self.config.eos_token_id,
        )
        self.requests[event.id] = request
        self.scheduler.add_request(request)

    def abort(self, request_id: str) -> bool:
        from mini_vllm.request import RequestStatus

        request = self.requests.pop(request_id, None)
        if request is None:
            return False
        self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)
        return True

    def has_unfinished(self) -> bool:
        return bool(self.requests)

    def step(self) -> Line:
        output = self.scheduler.schedule()
        scheduled = dict(output.num_scheduled_tokens)
        preempted = list(output.preempted_req_ids)
        blocks = ordered_blocks(output.new_block_ids, scheduled)
        self.scheduler.update_from_output(output, self._sample(scheduled))
        finished = self._take_finished(scheduled)
        return {
            "scheduled": scheduled,
            "preempted": preempted,
            "finished": finished,
            "new_block_ids": blocks,
            "computed": {i: r.num_computed_tokens for i, r in self.requests.items()},
            "running": [r.request_id for r in self.scheduler.running],
            "waiting": [r.request_id for r in self.scheduler.waiting],
            "free_blocks": self.scheduler.kv_cache_manager.num_free_blocks,
        }

    def _sample(self, scheduled: dict[str, int]) -> dict[str, list[int]]:
        """One token for every scheduled request whose tokens are all computed after this step."""
        vocab_size = self.config.vocab_size
        requests = [self.requests[i] for i in scheduled if i in self.requests]
        return {
            r.request_id: [sample_token(r.request_id, r.num_tokens, vocab_size)]
            for r in requests
            if r.num_computed_tokens >= r.num_tokens
        }

    def _take_finished(self, scheduled: dict[str, int]) -> list[list[Any]]:
        """Forget the requests that have ended: the scheduled ones first, in their order."""
        order = [i for i in scheduled if i in self.requests]
        order += [i for i in self.requests if i not in scheduled]
        ended = [self.requests[i] for i in order if self.requests[i].is_finished]
        for request in ended:
            del self.requests[request.request_id]
        return [[r.request_id, r.status.name, _reason(r)] for r in ended]


def _reason(request: Any) -> int | str | None:
    from mini_vllm.request import RequestStatus

    return end_reason(RequestStatus.get_finished_reason(request.status), request.stop_reason)


def load_class(target: str) -> Callable[..., Any]:
    """A policy by its name, or import `path/to/file.py:Class` or `package.module:Class`.

    Raises:
        ValueError: there is no such policy, file, module or class.
    """
    place, colon, name = target.rpartition(":")
    if not colon:
        from mini_vllm.policies import load_scheduler

        return load_scheduler(target)
    if place.endswith(".py"):
        module = _load_file(Path(place))
    else:
        try:
            module = importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise ValueError(f"there is no module {place!r}: {error}") from None
    found = getattr(module, name, None)
    if found is None:
        raise ValueError(f"{place} has no class {name!r}")
    return found


def _load_file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"_trace_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ValueError(f"there is no file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # dataclasses look their own module up
    spec.loader.exec_module(module)
    return module


def run_reference(trace: Trace, scheduler: str | None = None) -> Iterator[Line]:
    """Replay on mini_vllm's scheduler, or on the class that `scheduler` names (`load_class`)."""
    scheduler_class = load_class(scheduler) if scheduler else None
    return replay(trace, ReferenceSubject(trace.config, scheduler_class))
