"""A run in the trace format that https://ui.perfetto.dev and chrome://tracing read.

Requests are threads, phases complete events ("X"); preemptions and ends are instants ("i"); tokens,
blocks and queues are counters ("C"). A recording counts steps and holds no times, so one step is
drawn as one millisecond.

Source: the Trace Event Format (https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from labkit.inspector.recording import Run
from labkit.inspector.rows import COMPUTING, Row, Rows, build_rows

MICROSECONDS = 1000
"""One step on the drawn clock."""
PHASES = {
    "w": "waiting", "q": "waiting after preemption", "p": "prefill", "r": "recompute",
    "d": "decode", "s": "running, no tokens", "o": "swapped out",
}  # fmt: skip

Event = dict[str, Any]


def to_perfetto(runs: Sequence[Run]) -> dict[str, Any]:
    """Everything as one JSON object; each run is a process."""
    events = [event for pid, run in enumerate(runs, 1) for event in _run_events(pid, run)]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"clock": "one step is one millisecond", "runs": [r.name for r in runs]},
    }


def _run_events(pid: int, run: Run) -> Iterator[Event]:
    rows = build_rows(run)
    yield _meta(pid, 0, "process_name", name=run.name)
    for tid, row in enumerate(rows.rows, 1):
        yield _meta(pid, tid, "thread_name", name=row.id)
        yield _meta(pid, tid, "thread_sort_index", sort_index=tid)
        yield from _phases(pid, tid, row)
        yield from _instants(pid, tid, row)
    yield from _counters(pid, run, rows)


def _meta(pid: int, tid: int, what: str, /, **args: Any) -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": args}


def _phases(pid: int, tid: int, row: Row) -> Iterator[Event]:
    """One event for every stretch of equal letters."""
    start = 0
    for index in range(1, len(row.letters) + 1):
        if index < len(row.letters) and row.letters[index] == row.letters[start]:
            continue
        letter = row.letters[start]
        if letter in PHASES:
            yield {
                "ph": "X", "pid": pid, "tid": tid, "name": PHASES[letter], "cat": "request",
                "ts": (row.first + start) * MICROSECONDS, "dur": (index - start) * MICROSECONDS,
                "args": _arguments(row, start, index),
            }  # fmt: skip
        start = index


def _arguments(row: Row, start: int, end: int) -> dict[str, Any]:
    steps = {"first step": row.first + start, "steps": end - start}
    if row.letters[start] not in COMPUTING:
        return steps
    steps |= {"tokens": sum(row.tokens[start:end]), "computed before": row.before[start]}
    judged = [row.drafts[row.first + i] for i in range(start, end) if row.first + i in row.drafts]
    if judged:
        drafts, accepted = map(sum, zip(*judged, strict=True))
        steps |= {"drafts": drafts, "accepted drafts": accepted}
    return steps


def _instants(pid: int, tid: int, row: Row) -> Iterator[Event]:
    marks: list[tuple[int, str, dict[str, Any]]] = [(s, "preempted", {}) for s in row.preempted]
    if row.end is not None:
        last = row.first + len(row.letters)
        marks.append((last, "ended", {"status": row.end[0], "reason": row.end[1]}))
    for step, name, args in marks:
        yield {
            "ph": "i", "s": "t", "pid": pid, "tid": tid, "name": name, "cat": "request",
            "ts": step * MICROSECONDS, "args": args,
        }  # fmt: skip


def _counters(pid: int, run: Run, rows: Rows) -> Iterator[Event]:
    totals = [dict.fromkeys(COMPUTING, 0) for _ in run.lines]
    for row in rows.rows:
        for index, letter in enumerate(row.letters):
            if letter in COMPUTING:
                totals[row.first + index][letter] += row.tokens[index]
    for line, tokens in zip(run.lines, totals, strict=True):
        yield from (
            {
                "ph": "C",
                "pid": pid,
                "tid": 0,
                "name": name,
                "ts": line["step"] * MICROSECONDS,
                "args": a,
            }
            for name, a in {
                "tokens": {PHASES[letter]: tokens[letter] for letter in COMPUTING},
                "free blocks": {"blocks": line["free_blocks"]},
                "requests": {"running": len(line["running"]), "waiting": len(line["waiting"])},
            }.items()
        )
