"""Where two schedulers part: replay one trace on both, step by step, and stop at the first
difference.

What is shown is the state before that step, while both still agreed, and both decisions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from labkit.course.borrow import borrow, in_lab, whose
from labkit.course.console import Screen
from labkit.course.manifest import Phase
from labkit.course.root import find_root
from labkit.inside import child
from labkit.process import overlay
from labkit.process.worker import TRACE, Worker, WorkerError
from labkit.trace.diff import differing_fields
from labkit.trace.format import load_trace
from labkit.trace.generate import generate
from labkit.trace.kinds import KINDS

SEED = 1
STEP_SECONDS = 10.0


@dataclass(frozen=True)
class Parting:
    """The first step that differs.

    Attributes:
        step: its number.
        fields: names of what differs, in the trace format's order.
        before: the state before the step (`labkit.trace.scenario.snapshot`).
        yours: the learner's line; {"error": …} if the code raised or hung.
        expected: the reference's line.
    """

    step: int
    fields: tuple[str, ...]
    before: dict[str, Any]
    yours: dict[str, Any]
    expected: dict[str, Any]


def compare(subject: Worker, reference: Worker, trace: dict[str, Any]) -> Parting | None:
    """Replay on both; None if every step is the same."""
    pairs = zip_longest(_lines(subject, trace), _lines(reference, trace))
    for number, (mine, theirs) in enumerate(pairs):
        yours, expected = _line_of(mine), _line_of(theirs)
        fields = ("error",) if "error" in yours else differing_fields(yours, expected)
        if fields:
            before = (theirs or mine or {}).get("before", {})
            return Parting(number, fields, before, yours, expected)
    return None


def _line_of(answer: dict[str, Any] | None) -> dict[str, Any]:
    """What a side says of one step: its line, its error, or that it has none left."""
    if answer is None:
        return {"error": "the replay had ended"}
    line: dict[str, Any] = answer.get("line", answer)
    return line


def _lines(worker: Worker, trace: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Lines with states; a worker that gives up ends them with {"error": why}."""
    try:
        yield from worker.stream(TRACE, trace=trace, states=True)
    except WorkerError as error:
        yield {"error": reason(error, find_root())}


def reason(error: WorkerError, root: Path) -> str:
    """What a learner needs of it: the exception and the innermost line of a lab file."""
    if error.kind != "error":
        return str(error)
    text = f"{error.detail['type']}: {error.detail['message']}"
    for file, line, function in reversed(error.detail["frames"]):
        if place := in_lab(root, file, line):
            return f"{text}  ({place[0].relative_to(root).as_posix()}:{place[1]} in {function})"
    return text


def state_rows(before: dict[str, Any]) -> list[str]:
    """The state as the rows of a small table."""
    if not before:
        return []
    rows = []
    for queue in ("running", "waiting"):
        for index, request in enumerate(before[queue]):
            name = f"{queue}[{index}]"
            blocks = " ".join(map(str, request["blocks"])) or "-"
            done = f"{request['computed']}/{request['tokens']} tokens computed"
            rows.append(f"{name:11}  {request['id']:6} {done:26} blocks {blocks}")
        if not before[queue]:
            rows.append(f"{queue:11}  -")
    following = " ".join(map(str, before["next_free"])) or "-"
    rows.append(f"{'free':11}  {before['free_blocks']} blocks, next out: {following}")
    rows.append(f"{'budget':11}  {before['budget']} tokens a step, {before['block_size']} a block")
    return rows


def show_parting(out: Screen, name: str, parting: Parting) -> None:
    out.line(
        f"✗ {name}: first difference in step {parting.step}: {', '.join(parting.fields)}", "red"
    )
    out.line("before the step, both agree:", "dim", 2)
    for row in state_rows(parting.before):
        out.line(row, indent=4)
    width = max(len(field) for field in parting.fields)
    for field in parting.fields:
        missing = "(no such field)" if field != "error" else "no error"
        out.pair("yours", f"{field:{width}}  {parting.yours.get(field, missing)}", "red", 2)
        out.pair("expected", f"{field:{width}}  {parting.expected.get(field, missing)}", "green", 2)


def _next_step(parting: Parting) -> str:
    if "NotImplementedError: TODO" in parting.yours.get("error", ""):
        return "that function is not written yet; write it"
    return "mend that step"


def traces_of(phase: Phase, files: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The named files, else the phase's, else generated ones that are the same every time."""
    for name in files or phase.traces:
        path = Path(name) if Path(name).exists() else phase.root / name
        yield name, load_trace(path).to_dict()
    if not files and not phase.traces:
        for kind in KINDS:
            yield f"{kind}, seed {SEED}", generate(kind, SEED).to_dict()


def takes_part(phase: Phase) -> bool:
    """Whether a trace exercises any module of the phase: no trace holds a picture."""
    core = [m for m in phase.modules if m.startswith(("mini_vllm.core.", "mini_vllm.request"))]
    return any(".encoder_" not in module for module in core)


def show(phase: Phase, files: list[str], out: Screen | None = None) -> int:
    """`trace-diff NN`: 0 if every trace is the same step by step."""
    out = out or Screen()
    mapping, borrowed = borrow(phase, overlay.mapping_for([phase]))
    if not takes_part(phase) and not files:
        out.line(
            "A trace has prompts of text for one engine, and replays its scheduler and blocks alone"
            f" (mini_vllm/core): none of phase {phase.number}'s files runs in it, so there is"
            f" nothing to compare. make run-{phase.number} runs them in the whole engine."
        )
        return 0
    if mapping:
        out.line(whose(phase, borrowed), "dim")
    limits = child.Limits(STEP_SECONDS, phase.memory_mb)
    mine = Worker(phase.root, mapping, limits, "yours")
    theirs = Worker(phase.root, {}, limits, "reference")
    with mine, theirs:
        for name, trace in traces_of(phase, files):
            parting = compare(mine, theirs, trace)
            if parting:
                show_parting(out, name, parting)
                out.line(
                    f"next: {_next_step(parting)}, then make trace-diff-{phase.number}", "bold"
                )
                return 1
            out.line(f"✓ {name}: the same, step by step", "green")
    return 0
