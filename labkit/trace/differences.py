"""What mini_vllm does differently from vLLM on purpose: a small trace for each, replayed on both.

`tests/conformance/differences/NAME.json` holds the trace, the steps expected of mini_vllm, and what
vLLM did when it was recorded. `upstream_notes/DIFFERENCES.md` gives the reasons.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from labkit.course.files import write_text
from labkit.course.root import ROOT
from labkit.trace.format import Step, Trace, dump_line, parse_trace
from labkit.trace.oracle import Answer

FOLDER = ROOT / "tests" / "conformance" / "differences"
PATIENCE = 200
"""Further steps that vLLM is given to finish."""


@dataclass(frozen=True)
class DeliberateDifference:
    """A trace on which the two schedulers are meant to differ."""

    name: str
    summary: str
    trace: Trace
    ours: Answer
    theirs: Answer
    outcome: str
    """What became of vLLM after `PATIENCE` further steps."""


def load_all() -> list[DeliberateDifference]:
    """All recorded differences, by name."""
    return [load(path) for path in sorted(FOLDER.glob("*.json"))]


def load(path: Path) -> DeliberateDifference:
    """One recorded difference."""
    data = json.loads(path.read_text(encoding="utf-8"))
    trace = parse_trace(data["trace"], str(path))
    ours, theirs = (Answer(data[k]["lines"], data[k]["error"]) for k in ("mini_vllm", "vllm"))
    return DeliberateDifference(
        path.stem, data["summary"], trace, ours, theirs, data["vllm"]["outcome"]
    )


def save(difference: DeliberateDifference) -> Path:
    """Write one file, a step a line."""
    path = FOLDER / f"{difference.name}.json"
    trace = difference.trace.to_dict()
    events = ",\n   ".join(json.dumps(event) for event in trace["events"])
    text = f"""{{
 "summary": {json.dumps(difference.summary)},
 "trace": {{
  "config": {json.dumps(trace["config"])},
  "events": [
   {events}
  ]
 }},
 "mini_vllm": {{
  "error": {json.dumps(difference.ours.error)},
  "lines": {_steps(difference.ours)}
 }},
 "vllm": {{
  "outcome": {json.dumps(difference.outcome)},
  "error": {json.dumps(difference.theirs.error)},
  "lines": {_steps(difference.theirs)}
 }}
}}
"""
    write_text(path, text)
    return path


def _steps(answer: Answer) -> str:
    return "[\n   " + ",\n   ".join(dump_line(line) for line in answer.lines) + "\n  ]"


def record_theirs(
    difference: DeliberateDifference, replay: Callable[[Trace], Answer]
) -> DeliberateDifference:
    """The same difference with vLLM's side recorded anew; ours is written by hand."""
    trace = difference.trace
    patient = replace(trace, events=(*trace.events, Step(PATIENCE)))
    theirs, later = replay(trace), replay(patient)
    return replace(difference, theirs=theirs, outcome=_outcome(later))


def _outcome(answer: Answer) -> str:
    """In words, whether all requests have ended."""
    last = answer.lines[-1]
    if answer.error:
        return f"raises {answer.error}"
    stuck = [f"{i} running" for i in last["running"]] + [f"{i} waiting" for i in last["waiting"]]
    if not stuck:
        return f"all requests have ended by step {last['step']}"
    return f"hangs: {', '.join(stuck)}, still so at step {last['step']}"
