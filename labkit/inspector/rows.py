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

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
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
    drafts: dict[int, tuple[int, int]] = field(default_factory=dict)
    """In steps that verified drafts: how many there were, and how many of them were accepted."""
    end: list[Any] | None = None
    """Status and reason, if it has ended: the last letter's step."""

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
    followed: dict[str, _Follower] = {}
    for line in run.lines:
        view = _View(line)
        for request_id in view.named():
            if request_id not in followed:
                prompt = run.prompt_tokens.get(request_id)
                followed[request_id] = _Follower(Row(request_id, line["step"], prompt))
            followed[request_id].advance(line["step"], view)
    rows = [follower.row for follower in followed.values()]
    return Rows(rows, len(run.lines), all(row.prompt is not None for row in rows))


class _View:
    """One line, its lists ready for looking up."""

    def __init__(self, line: Line) -> None:
        self.scheduled: dict[str, int] = line["scheduled"]
        self.computed: dict[str, int] = line["computed"]
        self.preempted, self.aborted, self.running, self.waiting = (
            dict.fromkeys(line[key]) for key in ("preempted", "aborted", "running", "waiting")
        )
        self.finished = {entry[0]: entry[1:] for entry in line["finished"]}
        sampled = line.get("sampled", {})
        self.drafts = {
            request_id: (len(drafts), num_accepted(drafts, sampled.get(request_id, ())))
            for request_id, drafts in line.get("spec", {}).items()
        }

    def named(self) -> Iterable[str]:
        """Everyone in the line: the unfinished first, in the order of arrival."""
        ended = (*self.finished, *self.aborted)
        queues = (*self.preempted, *self.running, *self.waiting)
        return dict.fromkeys((*self.computed, *self.scheduled, *ended, *queues))


def num_accepted(drafts: Sequence[int], sampled: Sequence[int]) -> int:
    """How many drafts were accepted: those that came out, up to the first that did not."""
    pairs = zip(drafts, sampled, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


class _Follower:
    """Appends to one row what each step meant to its request."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.forget()

    def forget(self) -> None:
        """The request has ended; if its id comes back, it begins anew."""
        self.computed = 0
        self.sampled = 0
        self.most = 0  # the most tokens that it ever had computed
        self.holds = False  # admitted, and not preempted since
        self.lost = False  # was preempted

    def advance(self, step: int, view: _View) -> None:
        row = self.row
        while step > row.first + len(row.letters):  # it had ended, and its id comes back
            self.append(".", 0, 0)
        row.end = None
        if row.id in view.preempted:
            self.preempt(step, view)
        if row.id in view.scheduled:
            self.compute(view)
        else:
            self.append(self.idle_letter(view), 0, self.computed)
        if row.id in view.finished:
            row.end = view.finished[row.id]
        elif row.id in view.aborted:
            row.end = ["FINISHED_ABORTED", "abort"]
        if row.end is not None:
            self.forget()

    def append(self, letter: str, tokens: int, before: int) -> None:
        self.row.letters.append(letter)
        self.row.tokens.append(tokens)
        self.row.before.append(before)

    def preempt(self, step: int, view: _View) -> None:
        """Its blocks are taken; one that is swapped out, and so does not wait, keeps its tokens."""
        self.row.preempted.append(step)
        self.holds, self.lost = False, True
        if self.row.id in view.waiting:
            self.computed = 0

    def idle_letter(self, view: _View) -> str:
        """The letter of a step without tokens."""
        request_id = self.row.id
        if request_id in view.aborted:
            return "a"
        if request_id in view.running or (self.holds and request_id in view.finished):
            return "s"
        if request_id in view.waiting or request_id in view.finished:
            return "q" if self.lost else "w"
        return "o"

    def compute(self, view: _View) -> None:
        """A step in which the request got tokens."""
        count = view.scheduled[self.row.id]
        before = self.computed_before(view)
        if self.row.id in view.drafts:
            self.row.drafts[self.row.first + len(self.row.letters)] = view.drafts[self.row.id]
        self.append(self.phase(count, before), count, before)
        self.holds = True
        # After drafts were rejected, fewer tokens are computed than were scheduled.
        self.computed = view.computed.get(self.row.id, max(before, 0) + count)
        self.most = max(self.most, self.computed)
        if self.row.prompt is not None:
            known = self.row.prompt + self.sampled
            self.sampled += max(self.computed - known + 1, 0)

    def computed_before(self, view: _View) -> int:
        """Tokens that the request had computed when the step began.

        For one that was admitted in this very step they are what the prefix cache supplied. If it
        also finished in the step, the line no longer lists it, and only its prompt length tells.
        """
        if self.holds:
            return self.computed
        after = view.computed.get(self.row.id)
        if after is None and self.row.prompt is not None:
            after = self.row.prompt + self.sampled
        return UNKNOWN if after is None else max(after - view.scheduled[self.row.id], 0)

    def phase(self, count: int, before: int) -> str:
        """The letter of a step with tokens."""
        if self.row.prompt is None:
            decodes = self.holds and count == 1
        else:
            decodes = self.sampled > 0 and before >= self.row.prompt + self.sampled - 1
        if decodes:
            return "d"
        return "r" if before < self.most else "p"
