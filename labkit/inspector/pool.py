"""The block pool, step by step: who holds which block, and what still holds old contents.

A recording names the blocks that were given out, not what became of them afterwards. That
follows, by the rules of the paged cache:

* a request that finishes, is aborted or is preempted lets go of its whole table;
* the blocks that lie within the tokens which an admitted request had computed already are cache
  hits, all others are taken anew, as are those of a request that was swapped out;
* a full block is findable, and stays so while it is free; given out anew, it is evicted.

The sum must be right: blocks in tables and `free_blocks` together are the pool. Where they are
not, `PoolHistory.lost_at` names the step, and nothing after it is shown as known.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from labkit.inspector.recording import Run
from labkit.inspector.rows import Row, Rows
from labkit.trace.runner import Line

NEW, EVICT, HIT, RELEASE, FULL = "nehrf"
"""Taken anew; taken anew with the loss of old contents; found in the cache; let go; filled."""

Change = tuple[str, int, int]
"""What happened, to which block, through which row (its index in `Rows.rows`)."""


@dataclass
class PoolHistory:
    """All changes of a run, in order, step by step.

    `size` counts the null block too. `findable` says whether contents are followed at all: it
    needs the block size, and a run with prefix caching.
    """

    size: int
    block_size: int | None
    findable: bool
    derived_size: bool
    steps: list[list[Change]] = field(default_factory=list)
    lost_at: int | None = None
    notes: list[str] = field(default_factory=list)


def build_pool(run: Run, rows: Rows) -> PoolHistory:
    """Reconstruct the pool of a run from its block tables."""
    replay = _Replay(run, rows)
    for line in run.lines:
        replay.step(line)
    replay.history.notes = _notes(run, replay.history)
    return replay.history


class _Replay:
    """Keeps the tables while it walks through the lines."""

    def __init__(self, run: Run, rows: Rows) -> None:
        size, block_size = run.config.get("num_gpu_blocks"), run.config.get("block_size")
        caching = bool(run.config.get("enable_prefix_caching")) and block_size is not None
        self.history = PoolHistory(size or 0, block_size, caching, derived_size=not size)
        self.rows = {row.id: (index, row) for index, row in enumerate(rows.rows)}
        self.tables: dict[str, list[int]] = {}
        self.num_full: dict[str, int] = {}
        self.holders: dict[int, int] = {}  # block: how many tables have it
        self.contents: set[int] = set()  # blocks that are findable by what they hold
        self.changes: list[Change] = []

    def step(self, line: Line) -> None:
        self.changes = []
        for request_id in self._leaving(line):
            self._release(request_id)
        for request_id, blocks in line["new_block_ids"].items():
            self._take(request_id, blocks, line["step"])
        for request_id in line["scheduled"]:
            self._fill(request_id, line["step"])
        for request_id, _, _ in line["finished"]:
            self._release(request_id)
        self.history.steps.append(self.changes)
        self._balance(line)

    def _leaving(self, line: Line) -> Iterable[str]:
        """Those who let go of their blocks before this step gives any out."""
        yield from line["aborted"]
        yield from line["preempted"]
        present = {*line["running"], *line["waiting"], *line["scheduled"]}
        yield from [i for i in self.tables if i not in present]

    def _release(self, request_id: str) -> None:
        self.num_full.pop(request_id, None)
        for block in self.tables.pop(request_id, ()):
            self.holders[block] -= 1
            self._note(RELEASE, block, request_id)

    def _take(self, request_id: str, blocks: list[int], step: int) -> None:
        """Append blocks to a table; a new table begins with the cache hits."""
        num_hits = 0 if request_id in self.tables else self._num_hits(request_id, step)
        self.tables.setdefault(request_id, []).extend(blocks)
        self.num_full.setdefault(request_id, min(num_hits, len(blocks)))
        for index, block in enumerate(blocks):
            held = self.holders.get(block, 0)
            if index < num_hits or held:
                self._note(HIT, block, request_id)
            else:
                self._note(EVICT if block in self.contents else NEW, block, request_id)
                self.contents.discard(block)
            self.holders[block] = held + 1

    def _num_hits(self, request_id: str, step: int) -> int:
        swapped_in = self._row(request_id).letter_at(step - 1) == "o"
        if not self.history.findable or swapped_in:
            return 0
        return max(self._before(request_id, step), 0) // (self.history.block_size or 1)

    def _before(self, request_id: str, step: int) -> int:
        row = self._row(request_id)
        return row.before[step - row.first] if row.letter_at(step) != "." else 0

    def _fill(self, request_id: str, step: int) -> None:
        """The blocks that this step's tokens complete become findable."""
        table = self.tables.get(request_id)
        if table is None or not self.history.findable:
            return
        row = self._row(request_id)
        after = max(self._before(request_id, step), 0) + row.tokens[step - row.first]
        num_full = min(after // (self.history.block_size or 1), len(table))
        for block in table[self.num_full[request_id] : num_full]:
            if block not in self.contents:
                self._note(FULL, block, request_id)
                self.contents.add(block)
        self.num_full[request_id] = max(num_full, self.num_full[request_id])

    def _row(self, request_id: str) -> Row:
        return self.rows[request_id][1]

    def _note(self, what: str, block: int, request_id: str) -> None:
        self.changes.append((what, block, self.rows[request_id][0]))

    def _balance(self, line: Line) -> None:
        """Held and free blocks are all blocks but the null block, or the reconstruction is lost."""
        history = self.history
        num_held = sum(count > 0 for count in self.holders.values())
        if not history.size:
            history.size = num_held + line["free_blocks"] + 1
        outside = max(self.holders, default=0) >= history.size
        wrong_sum = num_held + line["free_blocks"] != history.size - 1
        if history.lost_at is None and (wrong_sum or outside):
            history.lost_at = line["step"]


def _notes(run: Run, history: PoolHistory) -> list[str]:
    """What the recording leaves open about the pool, in sentences."""
    notes = []
    if history.lost_at is not None:
        notes.append(
            f"From step {history.lost_at} on the recording does not determine who holds which "
            "block: the block tables and free_blocks do not add up to the pool."
        )
    if history.derived_size:
        notes.append(
            f"The recording does not say how large the pool is. {history.size} blocks, the null "
            "block included, follow from step 0."
        )
    if history.block_size is None:
        notes.append(
            "The recording does not say the block size: cache hits on free blocks, contents and "
            "evictions are not shown."
        )
    if history.findable and _may_have_lost_contents(run):
        notes.append(
            "When the priority policy preempts a request that had its tokens already, the "
            "recording does not list the blocks which that request had been given in the step. "
            "Free blocks are shown with their contents, though they may have lost them."
        )
    scheduler = run.config.get("scheduler")
    if history.findable and scheduler not in (None, "Scheduler", "vllm-v1"):
        notes.append(
            f"Which blocks are findable is shown by the rule of vLLM V1; {scheduler} may keep "
            "another."
        )
    return notes


def _may_have_lost_contents(run: Run) -> bool:
    by_priority = run.config.get("policy") == "priority"
    failed = any(e[1] == "FINISHED_ERROR" for line in run.lines for e in line["finished"])
    return failed or (by_priority and any(line["preempted"] for line in run.lines))
