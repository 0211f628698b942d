"""What a worker can be asked to do: plain data in, plain data out. Runs in the child only.

A scenario is a function of keyword arguments; one that yields sends each value as soon as it has
it. To add one, write it here and name it in `SCENARIOS`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from itertools import islice
from typing import Any

from labkit import program


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


def workload(workload: str, modules: list[str]) -> dict[str, Any]:
    """Run a workload of `run NN` in this process's engine and measure it."""
    from labkit import ab

    return ab.measure(workload, modules)


def compile_kernel(**args: Any) -> dict[str, Any]:
    """Compile a kernel for a GPU that is not there."""
    from labkit.kernels import sandbox

    return sandbox.compile_here(**args)


def observe_kernel(**args: Any) -> dict[str, Any]:
    """Run one case of a kernel under the monitor."""
    from labkit.kernels import sandbox

    return sandbox.observe_here(**args)


def measure_kernel(**args: Any) -> Iterator[Any]:
    """Run a kernel's cases and problems on this machine's GPU."""
    from labkit.kernels import gpu

    yield from gpu.measure_here(**args)


SCENARIOS: dict[str, Any] = {
    "ping": ping,
    "warm": warm,
    "program": run_program,
    "trace": trace,
    "workload": workload,
    "compile_kernel": compile_kernel,
    "observe_kernel": observe_kernel,
    "measure_kernel": measure_kernel,
}
