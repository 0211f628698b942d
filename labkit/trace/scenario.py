"""The replay of a trace as a worker's scenario. Runs in the child only."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from labkit.trace.format import parse_trace
from labkit.trace.runner import ReferenceSubject, load_class, replay


def trace(trace: dict[str, Any], scheduler: str = "", states: bool = False) -> Iterator[Any]:
    """Replay a trace; yields a line for each step, with `states` also the state before it."""
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
