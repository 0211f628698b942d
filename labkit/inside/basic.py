"""What a worker can be asked to do: plain data in, plain data out. Runs in the child only.

A scenario is a function of keyword arguments; one that yields sends each value as soon as it has
it. To add one, write it here and name it in `SCENARIOS`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from itertools import islice
from typing import Any

from labkit.inside import program


def run_program(steps: list[dict[str, Any]]) -> list[Any]:
    """Do the calls that a `Program` wrote down."""
    return program.execute(steps)


def ping() -> str:
    """Answer: the worker has started."""
    return "pong"


def warm(packages: list[str]) -> None:
    """Import installed packages, so that later answers do not take the time for it."""
    for name in packages:
        importlib.import_module(name)


def trace(trace: dict[str, Any], scheduler: str = "", states: bool = False) -> Iterator[Any]:
    """Replay a trace; yields a line for each step, with `states` also the state before it."""
    from labkit.trace.format import parse_trace
    from labkit.trace.runner import ReferenceSubject, load_class, replay

    parsed = parse_trace(trace)
    subject = ReferenceSubject(parsed.config, load_class(scheduler) if scheduler else None)
    if not states:
        yield from replay(parsed, subject)
        return
    step, before = subject.step, [dict[str, Any]()]

    def watched_step() -> dict[str, Any]:
        before[0] = snapshot(subject)
        return step()

    subject.step = watched_step  # type: ignore[method-assign]
    for line in replay(parsed, subject):
        yield {"line": line, "before": before[0]}


def snapshot(subject: Any) -> dict[str, Any]:
    """What a scheduler looks like from outside: queues, block tables and the free list's head."""
    scheduler = subject.scheduler
    manager = scheduler.kv_cache_manager

    def row(request: Any) -> dict[str, Any]:
        return {
            "id": request.request_id,
            "computed": request.num_computed_tokens,
            "tokens": request.num_tokens,
            "blocks": _try(lambda: list(manager.get_block_ids(request.request_id)), []),
        }

    return {
        "running": [row(request) for request in scheduler.running],
        "waiting": [row(request) for request in scheduler.waiting],
        "free_blocks": manager.num_free_blocks,
        "next_free": _try(lambda: _free_ids(manager, 8), []),
        "budget": subject.config.max_num_batched_tokens,
        "block_size": subject.config.block_size,
    }


def _free_ids(manager: Any, number: int) -> list[int]:
    """The blocks that would be given out next."""
    return [block.block_id for block in islice(manager.block_pool.free_block_queue, number)]


def _try(function: Any, default: Any) -> Any:
    """A learner's half-finished class may lack what a snapshot asks for: then show nothing."""
    try:
        return function()
    except Exception:
        return default


def drive(
    begin: dict[str, Any] | None = None,
    sampled: dict[str, list[int]] | None = None,
    arrivals: list[dict[str, Any]] | None = None,
    plan: bool = True,
    audit: bool = False,
) -> dict[str, Any]:
    """Steer a scheduler from outside, a step a call (`labkit.arena.remote`).

    Args:
        begin: make a new one first: its class, options and limits; see `_new_scheduler`.
        sampled: the tokens that the last plan brought, by request; None: there was no plan.
        arrivals: fields of requests that have come since.
        plan: whether to plan the next step.
        audit: whether it shall look at its own books.
    """
    if begin is not None:
        _DRIVEN["scheduler"] = _new_scheduler(**begin)
    scheduler, ended = _DRIVEN["scheduler"], []
    if sampled is not None:
        outputs = scheduler.update_from_output(_DRIVEN.pop("plan"), sampled)
        ended = [[o.request_id, o.finish_reason] for o in outputs if o.finish_reason is not None]
    for fields in arrivals or ():
        scheduler.add_request(_new_request(**fields))
    answer: dict[str, Any] = {"ended": ended}
    if plan:
        _DRIVEN["plan"] = scheduler.schedule()
        answer["plan"] = _plan_data(_DRIVEN["plan"])
    if audit:
        scheduler.check_integrity()
    return answer | {"free_blocks": scheduler.kv_cache_manager.num_free_blocks}


_DRIVEN: dict[str, Any] = {}
"""The scheduler that `drive` steers, and the plan that it has not been told the tokens of."""


def _new_scheduler(
    scheduler: str, options: dict[str, Any], limits: dict[str, Any], cache: dict[str, Any]
) -> Any:
    """A scheduler of "package.module:Class", with V0's options if there are any; an option given
    as text is the name of an object."""
    from mini_vllm.config import CacheConfig, SchedulerConfig

    cls = program.find_object(scheduler)
    named = {k: program.find_object(v) if type(v) is str else v for k, v in options.items()}
    cls = cls.with_options(**named) if named else cls
    return cls(SchedulerConfig(**limits), CacheConfig(**cache), (), b"root")


def _new_request(id: str, tokens: list[int], max_tokens: int, priority: int, time: float) -> Any:
    from mini_vllm.request import Request
    from mini_vllm.sampling_params import SamplingParams

    return Request(
        id, tokens, SamplingParams(temperature=0.0, max_tokens=max_tokens), priority, time
    )


def _plan_data(plan: Any) -> dict[str, Any]:
    """What a plan tells the worker, without the texts."""
    cached = plan.scheduled_cached_reqs
    return {
        "tokens": plan.num_scheduled_tokens,
        "new": [[r.req_id, r.num_computed_tokens] for r in plan.scheduled_new_reqs],
        "known": [
            list(row) for row in zip(cached.req_ids, cached.num_computed_tokens, strict=True)
        ],
        "resumed": sorted(cached.resumed_req_ids),
        "blocks": plan.new_block_ids,
        "preempted": plan.preempted_req_ids,
        "finished": sorted(plan.finished_req_ids),
        "swap_out": [list(pair) for pair in plan.blocks_to_swap_out],
        "swap_in": [list(pair) for pair in plan.blocks_to_swap_in],
        "copy": [list(pair) for pair in plan.blocks_to_copy],
    }


def workload(workload: str, modules: list[str]) -> dict[str, Any]:
    """Run a workload of `run NN` in this process's engine and measure it."""
    from labkit.learner import ab

    return ab.measure(workload, modules)


def compile_kernel(**args: Any) -> dict[str, Any]:
    """Compile a kernel for a GPU that is not there."""
    from labkit.kernels.watch import sandbox

    return sandbox.compile_here(**args)


def observe_kernel(**args: Any) -> dict[str, Any]:
    """Run one case of a kernel under the monitor."""
    from labkit.kernels.watch import sandbox

    return sandbox.observe_here(**args)


def measure_kernel(**args: Any) -> Iterator[Any]:
    """Run a kernel's cases and problems on this machine's GPU."""
    from labkit.kernels.measure import gpu

    yield from gpu.measure_here(**args)


SCENARIOS: dict[str, Any] = {
    "ping": ping,
    "warm": warm,
    "program": run_program,
    "trace": trace,
    "drive": drive,
    "workload": workload,
    "compile_kernel": compile_kernel,
    "observe_kernel": observe_kernel,
    "measure_kernel": measure_kernel,
}
