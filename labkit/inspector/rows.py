"""Requests × steps: what every request did in every step.

A row is one request, a letter a step::

    w  waits, has never run              p  computes its prompt
    q  waits again after a preemption    r  computes again what a preemption took from it
    s  runs, but got no tokens           d  decodes: all its tokens but the newest are computed
    o  in neither queue: swapped out     a  aborted before this step
    .  not there

A recording says how many tokens a request got, not why. The letters p, r and d follow from its
prompt length and its computed tokens. Where prompt lengths are unknown, a running request that
gets one token counts as decoding; `Rows.exact` is False then, and the views say so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from labkit.inspector.recording import Run
from labkit.trace.runner import Line

COMPUTING = "prd"
UNKNOWN = -1
"""Computed tokens that the recording does not determine."""


@dataclass
class Row:
    """One request: parallel lists, an entry a step, from step `first` to the step it ended in."""

    id: str
    first: int
    prompt: int | None
    letters: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    """Tokens scheduled."""
    before: list[int] = field(default_factory=list)
    """Tokens computed when the step began, those from the prefix cache included."""
    preempted: list[int] = field(default_factory=list)
    """Steps in which it lost its blocks."""
    end: list[Any] | None = None
    """Status and reason, if it has ended: the last letter's step."""

    _computed: int = 0
    _sampled: int = 0
    _peak: int = 0  # the most tokens that it ever had computed
    _holds: bool = False  # admitted, and neither preempted nor ended since

    def letter_at(self, step: int) -> str:
        index = step - self.first
        return self.letters[index] if 0 <= index < len(self.letters) else "."


@dataclass(frozen=True)
class Rows:
    """All rows of a run, in the order in which the recording first names them."""

    rows: list[Row]
    steps: int
    exact: bool
    """Whether all prompt lengths are known, so that prefill and decode are told apart surely."""

    def scheduled(self, step: int) -> list[tuple[Row, str, int]]:
        """Row, letter and tokens of those that got any in one step."""
        found = []
        for row in self.rows:
            if (letter := row.letter_at(step)) in COMPUTING:
                found.append((row, letter, row.tokens[step - row.first]))
        return found


def build_rows(run: Run) -> Rows:
    """Follow every request through the steps of a run."""
    rows: dict[str, Row] = {}
    for line in run.lines:
        step = line["step"]
        view = _View(line)
        for request_id in view.named():
            row = rows.get(request_id)
            if row is None:
                row = rows[request_id] = Row(request_id, step, run.prompt_tokens.get(request_id))
            _advance(row, step, view)
    return Rows(
        list(rows.values()), len(run.lines), all(r.prompt is not None for r in rows.values())
    )


class _View:
    """One line, its lists ready for looking up."""

    def __init__(self, line: Line) -> None:
        self.scheduled: dict[str, int] = line["scheduled"]
        self.computed: dict[str, int] = line["computed"]
        self.preempted = dict.fromkeys(line["preempted"])  # for looking up, in their order
        self.aborted = dict.fromkeys(line["aborted"])
        self.running = dict.fromkeys(line["running"])
        self.waiting = dict.fromkeys(line["waiting"])
        self.finished = {entry[0]: entry[1:] for entry in line["finished"]}

    def named(self) -> Iterable[str]:
        """Everyone in the line: old and unfinished first, in the order of arrival."""
        ended = (*self.finished, *self.aborted)
        queues = (*self.preempted, *self.running, *self.waiting)
        return dict.fromkeys((*self.computed, *self.scheduled, *ended, *queues))


def _advance(row: Row, step: int, view: _View) -> None:
    """Append what one step meant to one request."""
    missing = step - row.first - len(row.letters)
    for _ in range(missing):  # it had ended, and its id came back
        _append(row, ".", 0, 0)
    row.end = None
    if row.id in view.preempted:
        row.preempted.append(step)
        row._holds, row._computed = False, 0 if row.id in view.waiting else row._computed
    if row.id in view.scheduled:
        _compute(row, view)
    else:
        _append(row, _idle_letter(row, view), 0, row._computed)
    if row.id in view.finished:
        row.end = view.finished[row.id]
    elif row.id in view.aborted:
        row.end = ["FINISHED_ABORTED", "abort"]
    if row.end is not None:
        row._holds, row._computed, row._sampled, row._peak = False, 0, 0, 0


def _append(row: Row, letter: str, tokens: int, before: int) -> None:
    row.letters.append(letter)
    row.tokens.append(tokens)
    row.before.append(before)


def _idle_letter(row: Row, view: _View) -> str:
    if row.id in view.aborted:
        return "a"
    if row.id in view.running or (row._holds and row.id in view.finished):
        return "s"
    if row.id in view.waiting or row.id in view.finished:
        return "q" if row.preempted else "w"
    return "o"


def _compute(row: Row, view: _View) -> None:
    """A step in which the request got tokens."""
    count = view.scheduled[row.id]
    before = _computed_before(row, view)
    letter = _phase(row, count, before)
    _append(row, letter, count, before)
    row._holds = True
    row._computed = view.computed.get(row.id, max(before, 0) + count)
    row._peak = max(row._peak, row._computed)
    if row.prompt is not None:
        known = row.prompt + row._sampled
        row._sampled += max(row._computed - known + 1, 0)


def _computed_before(row: Row, view: _View) -> int:
    """Tokens that the request had computed when the step began.

    For one that was admitted in this very step they are what the prefix cache supplied. If it
    also finished in the step, the line no longer lists it, and only its prompt length tells.
    """
    if row._holds:
        return row._computed  # with drafts, more tokens are scheduled than are computed after it
    count = view.scheduled[row.id]
    after = view.computed.get(row.id)
    if after is None and row.prompt is not None:
        after = row.prompt + row._sampled
    return UNKNOWN if after is None else max(after - count, 0)


def _phase(row: Row, count: int, before: int) -> str:
    if row.prompt is None:
        decodes = row._holds and count == 1
    else:
        decodes = row._sampled > 0 and before >= row.prompt + row._sampled - 1
    if decodes:
        return "d"
    return "r" if before < row._peak else "p"
