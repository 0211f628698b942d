"""A run step by step, with the learner's files in the engine and beside it the reference: what the
inspector's page plays.
"""

from __future__ import annotations

from typing import Any

from labkit.course.borrow import borrow, whose
from labkit.course.console import Screen
from labkit.course.manifest import Phase
from labkit.inside import child
from labkit.inspector.packing import pack
from labkit.inspector.sources import of_trace
from labkit.learner.divergence import STEP_SECONDS, reason
from labkit.process import overlay
from labkit.process.worker import TRACE, Worker, WorkerError
from labkit.trace.format import Trace, load_trace
from labkit.trace.runner import Line

STORY = "docs/traces/rush.json"
"""Below the checkout: requests that share a prefix, and more of them than the pool can hold."""


def step_through(phase: Phase, out: Screen) -> dict[str, Any]:
    """Replay the story on the learner's files and on the reference.

    Functions that are not written yet are the reference's; the screen says which.

    Returns:
        Both runs, packed as `labkit.inspector.packing.pack` does.

    Raises:
        ValueError: the first step ended with an error already; the message says which.
    """
    trace = load_trace(phase.root / STORY)
    mapping, borrowed = borrow(phase, overlay.mapping_for([phase]))
    for line in whose(phase, borrowed).splitlines():
        out.line(line, "dim")
    runs = []
    for name, modules in (("yours", mapping), ("the reference", {})):
        lines, error = replayed(phase, modules, trace)
        if not lines:
            raise ValueError(f"{name}: {error}")
        if error:
            out.line(f"✗ {name} ended after step {len(lines) - 1}: {error}", "red")
        runs.append(of_trace(name, lines, trace, error))
    return pack(runs, "Step by step")


def replayed(phase: Phase, mapping: dict[str, str], trace: Trace) -> tuple[list[Line], str | None]:
    """The steps until the end or an error, and the error."""
    lines: list[Line] = []
    limits = child.Limits(STEP_SECONDS, phase.memory_mb)
    with Worker(phase.root, mapping, limits) as worker:
        try:
            lines.extend(worker.stream(TRACE, trace=trace.to_dict()))
        except WorkerError as error:
            return lines, reason(error, phase.root)
    return lines, None
