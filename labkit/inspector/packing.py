"""A run as the inspector's page takes it: packed by columns, so that a long one stays small.

`page/recording.js` unpacks what `pack_run` packs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from labkit.inspector.pool import PoolHistory, build_pool
from labkit.inspector.recording import Run
from labkit.inspector.rows import COMPUTING, Row, Rows, build_rows
from labkit.trace.diff import Difference, first_difference
from labkit.trace.runner import Line

LONGEST_VALUE = 600
"""Characters of a differing field that the page shows."""


def pack(runs: Sequence[Run], title: str) -> dict[str, Any]:
    """All that the page needs to know."""
    difference = difference_of(runs[0], runs[1]) if len(runs) == 2 else None
    return {
        "title": title,
        "runs": [pack_run(run) for run in runs],
        "difference": _pack_difference(difference) if difference else None,
    }


def difference_of(left: Run, right: Run) -> Difference | None:
    """The first step in which two runs differ."""
    return first_difference(_with_error(left), _with_error(right))


def _with_error(run: Run) -> list[Line]:
    """The lines, and the error that ended the run as one more."""
    return run.lines + ([{"step": len(run.lines), "error": run.error}] if run.error else [])


def _pack_difference(found: Difference) -> dict[str, Any]:
    fields = [
        [name, *(_value(side, name) for side in (found.left, found.right))] for name in found.fields
    ]
    return {"step": found.step, "fields": fields}


def _value(line: Line | None, name: str) -> str:
    if line is None:
        return "the run has ended"
    text = json.dumps(line.get(name))
    return text if len(text) <= LONGEST_VALUE else text[:LONGEST_VALUE] + " …"


def pack_run(run: Run) -> dict[str, Any]:
    """One run by columns."""
    rows = build_rows(run)
    pool = build_pool(run, rows)
    notes = [*run.notes, *_notes(run, rows), *pool.notes]
    return {
        "name": run.name,
        "steps": rows.steps,
        "config": dict(run.config),
        "error": run.error,
        "notes": notes,
        "free": [line["free_blocks"] for line in run.lines],
        "preempted": list(_pack_preempted(run.lines, rows)),
        "rows": [_pack_row(row) for row in rows.rows],
        "queue": _pack_queue(run.lines, rows),
        "images": list(_pack_images(run.lines, rows)),
        "pool": _pack_pool(pool),
    }


def _notes(run: Run, rows: Rows) -> list[str]:
    notes = []
    if not rows.exact:
        notes.append(
            "The recording does not say how long the prompts are: a running request that gets one "
            "token is shown as decoding."
        )
    if "max_num_batched_tokens" not in run.config:
        notes.append("The recording does not say the token budget: no limit is drawn.")
    if run.error:
        notes.append(f"The run ended after step {rows.steps - 1}: {run.error}")
    return notes


def _pack_row(row: Row) -> dict[str, Any]:
    """`cells` is run-length encoded: "w3p2d50". `tokens` lists those of p, r and D, in order; a d
    is one token, a D several. `before` lists where the computed tokens are not those that the
    steps so far add up to: after cache hits, and after rejected drafts. `drafts` lists
    [step, drafts, accepted drafts]."""
    letters = [
        "D" if letter == "d" and count != 1 else letter
        for letter, count in zip(row.letters, row.tokens, strict=True)
    ]
    counts = zip(letters, row.tokens, strict=True)
    return {
        "id": row.id,
        "first": row.first,
        "prompt": row.prompt,
        "cells": "".join(_run_lengths(letters)),
        "tokens": [count for letter, count in counts if letter in "prD"],
        "before": list(_jumps(row)),
        "drafts": [[step, *counts] for step, counts in row.drafts.items()],
        "end": row.end,
    }


def _run_lengths(letters: Sequence[str]) -> Iterator[str]:
    for found in re.finditer(r"(.)\1*", "".join(letters)):
        length = len(found[0])
        yield found[1] + (str(length) if length > 1 else "")


def _jumps(row: Row) -> Iterator[list[int]]:
    """[index, computed tokens] where they are not what the page would add up."""
    expected = 0
    for index, letter in enumerate(row.letters):
        if row.first + index in row.preempted or letter in ".a":
            expected = 0
        if letter in COMPUTING:
            if row.before[index] != expected:
                yield [index, row.before[index]]
            expected = max(row.before[index], 0) + row.tokens[index]


def _pack_preempted(lines: Sequence[Line], rows: Rows) -> Iterator[list[Any]]:
    """[step, rows in the order of their preemption] of the steps that have any."""
    numbers = {row.id: index for index, row in enumerate(rows.rows)}
    for line in lines:
        if line["preempted"]:
            yield [line["step"], [numbers[i] for i in line["preempted"]]]


def _pack_images(lines: Sequence[Line], rows: Rows) -> Iterator[list[Any]]:
    """[step, [row, images encoded] of each request, images forgotten], where there is any."""
    numbers = {row.id: index for index, row in enumerate(rows.rows)}
    for line in lines:
        encoded, forgotten = line.get("encode", {}), line.get("forgotten", [])
        if encoded or forgotten:
            by_row = [[numbers[i], list(images)] for i, images in encoded.items()]
            yield [line["step"], by_row, len(forgotten)]


def _pack_queue(lines: Sequence[Line], rows: Rows) -> list[Any]:
    """How the waiting queue changes: [step, rows that left it, [position, row] of those new in it].

    If those who stay change places among each other, all leave and all are new.
    """
    numbers = {row.id: index for index, row in enumerate(rows.rows)}
    changes: list[Any] = []
    before: list[int] = []
    for line in lines:
        after = [numbers[i] for i in line["waiting"] if i in numbers]
        if after != before:
            changes.append([line["step"], *queue_change(before, after)])
        before = after
    return changes


def queue_change(before: list[int], after: list[int]) -> tuple[list[int], list[list[int]]]:
    """Who leaves a queue, and who comes into it where."""
    stay = set(before) & set(after)
    if [i for i in before if i in stay] != [i for i in after if i in stay]:
        stay = set()
    left = [i for i in before if i not in stay]
    return left, [[place, i] for place, i in enumerate(after) if i not in stay]


def _pack_pool(pool: PoolHistory) -> dict[str, Any]:
    changes = [change for step in pool.steps for change in step]
    return {
        "size": pool.size,
        "blockSize": pool.block_size,
        "findable": pool.findable,
        "lostAt": pool.lost_at,
        "counts": [len(step) for step in pool.steps],
        "what": "".join(what for what, _, _ in changes),
        "blocks": [block for _, block, _ in changes],
        "rows": [row for _, _, row in changes],
    }
