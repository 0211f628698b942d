"""A record of every step, one JSON object a line: tokens of each request, and where blocks went.

The lines have the format that traces are compared in (``python -m labkit trace run``), so a run
of the real engine can be laid beside a replay. Two more fields describe the run, for tools that
draw it (``python -m labkit inspect``): ``added``, the prompt lengths of requests that are new, and
in the first line ``config``, the limits.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from mini_vllm.core.scheduler import Scheduler
from mini_vllm.core.scheduler_output import EngineCoreOutput, SchedulerOutput, SchedulerStats

_STATUS_NAMES = {
    "stop": "FINISHED_STOPPED",
    "length": "FINISHED_LENGTH_CAPPED",
    "error": "FINISHED_ERROR",
}


class Observed(Protocol):
    """What can be recorded: steps that observers get, and the scheduler that plans them."""

    scheduler: Scheduler
    observers: list[Any]


class Timeline:
    """An observer that collects a record of every step of an engine with this scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.records: list[dict[str, Any]] = []
        self._unfinished: set[str] = set()

    def record_step(
        self,
        plan: SchedulerOutput,
        outputs: list[EngineCoreOutput],
        seconds: float,
        stats: SchedulerStats,
    ) -> None:
        """Append the record of one step.

        A request that was there and is gone without having finished in the step was ended from
        outside, by its caller or by a stop string: it is listed as aborted.
        """
        scheduler = self.scheduler
        finished = [
            [o.request_id, _STATUS_NAMES[o.finish_reason], o.stop_reason or o.finish_reason]
            for o in outputs
            if o.finish_reason is not None
        ]
        gone = self._unfinished - scheduler.requests.keys() - {entry[0] for entry in finished}
        added = {new.req_id: len(new.prompt_token_ids) for new in plan.scheduled_new_reqs}
        added |= {i: r.num_prompt_tokens for i, r in scheduler.requests.items()}
        added = {i: length for i, length in added.items() if i not in self._unfinished}
        self._unfinished = set(scheduler.requests)
        waiting = [*scheduler.skipped_waiting, *scheduler.waiting]
        self.records.append(
            {
                "step": len(self.records),
                "scheduled": dict(plan.num_scheduled_tokens),
                "preempted": plan.preempted_req_ids,
                "finished": finished,
                "aborted": sorted(gone),
                "new_block_ids": plan.new_block_ids,
                "computed": {i: r.num_computed_tokens for i, r in scheduler.requests.items()},
                "running": [request.request_id for request in scheduler.running],
                "waiting": [request.request_id for request in waiting],
                "free_blocks": scheduler.kv_cache_manager.num_free_blocks,
                "added": added,
            }
            | _verified(plan, outputs)
            | _encoded(plan, scheduler)
            | ({} if self.records else {"config": _limits(scheduler)})
        )

    def write(self, path: Path) -> None:
        """Write one line per step; a half-written file is never seen, and nothing else is left.

        What is no file, such as /dev/stdout, is written as it is.
        """
        text = "".join(json.dumps(record) + "\n" for record in self.records)
        if path.exists() and not path.is_file():
            path.write_text(text)
            return
        temporary = _temporary(path)
        try:
            temporary.write_text(text)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def check_timeline_path(path: Path) -> None:
    """Ask before a long run, not after it, whether ``path`` can be written.

    Raises:
        ValueError: that says why not.
    """
    if path.is_dir():
        raise ValueError(f"timeline is {str(path)!r}, a folder; give the name of a file")
    if path.exists() and not path.is_file():
        return
    try:
        with _temporary(path).open("w"):
            pass
        _temporary(path).unlink()
    except OSError as error:
        raise ValueError(
            f"timeline is {str(path)!r}, which cannot be written: {error.strerror}"
        ) from error


def _temporary(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def _encoded(plan: SchedulerOutput, scheduler: Scheduler) -> dict[str, Any]:
    """For a model that sees: the images that the step encodes, by request and by their place in its
    prompt, and the hashes of those that the encoder cache has let go."""
    if scheduler.encoder_cache_manager is None:
        return {}
    return {
        "encode": dict(plan.scheduled_encoder_inputs),
        "forgotten": list(plan.free_encoder_mm_hashes),
    }


def _verified(plan: SchedulerOutput, outputs: list[EngineCoreOutput]) -> dict[str, Any]:
    """In a step with drafts: which they were, and what came of them; all but the last of
    ``sampled`` are accepted drafts."""
    if not plan.scheduled_spec_decode_tokens:
        return {}
    sampled = {o.request_id: o.new_token_ids for o in outputs if o.new_token_ids}
    return {"spec": plan.scheduled_spec_decode_tokens, "sampled": sampled}


def _limits(scheduler: Scheduler) -> dict[str, Any]:
    """The limits under which the engine schedules, by the names of the command line's options."""
    return {
        "scheduler": type(scheduler).__name__,
        **asdict(scheduler.scheduler_config),
        **asdict(scheduler.cache_config),
    }


@contextmanager
def record_timeline(engine: Observed, path: Path | None) -> Iterator[Timeline]:
    """Record the steps that ``engine`` makes inside the block, into ``path`` at its end."""
    timeline = Timeline(engine.scheduler)
    engine.observers.append(timeline.record_step)
    try:
        yield timeline
    finally:
        engine.observers.remove(timeline.record_step)
        if path is not None:
            timeline.write(path)
