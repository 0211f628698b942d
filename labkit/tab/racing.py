"""The arena's small race in the tab: the learner's schedulers and the course's, under one load."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from labkit.course.borrow import borrow, whose
from labkit.course.console import Screen
from labkit.course.manifest import Phase
from labkit.inside import child
from labkit.process import overlay

RACERS = {
    "03-scheduler": ("vllm-v1",),
    "16-policies-and-capstone": ("minivllm", "vllm-v0"),
}
"""Phase -> the policies that its modules hold."""
WORKLOAD, REQUESTS, SEED, SECONDS = "pressure", 120, 1, 60
COLUMNS = ("in time", "tokens/s", "TTFT p50", "preempted")


def race(phase: Phase, out: Screen) -> None:
    """Run the load under each policy of the phase twice, with the learner's modules and with the
    reference's, and under vLLM V1's scheduler."""
    from labkit.arena.workloads import WORKLOADS  # it imports the engine: not before it is unsealed

    mapping, borrowed = borrow(phase, overlay.mapping_for([phase]))
    for line in whose(phase, borrowed).splitlines():
        out.line(line, "dim")
    out.line(f"{REQUESTS} requests of {WORKLOAD}: {WORKLOADS[WORKLOAD].about}", "bold")
    out.line(f"{'':22}" + "".join(f"{column:>11}" for column in COLUMNS), "table")
    names = RACERS[phase.slug]
    for name in names:
        show(out, f"yours, {name}", played(phase, name, mapping))
    for name in dict.fromkeys([*names, "vllm-v1"]):
        show(out, name, played(phase, name, {}))


def played(phase: Phase, policy: str, mapping: Mapping[str, str]) -> dict[str, Any]:
    """What a match has given: {"run": …}, or {"stopped": why}."""
    from labkit.arena.contest import Match
    from labkit.arena.cost import DEFAULT

    match = Match(policy, WORKLOAD, SEED, REQUESTS, str(DEFAULT))
    with tempfile.TemporaryDirectory() as place:
        answer = Path(place) / "answer.json"
        words = ["-m", "labkit.arena.contest", json.dumps(asdict(match)), str(answer)]
        done = child.run(words, overlay.environment(phase.root, mapping), child.Limits(SECONDS))
        if not answer.exists():
            last = done.stderr.strip().splitlines() or ["it ended without an answer"]
            return {"stopped": last[-1]}
        found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
        return found


def show(out: Screen, title: str, answer: dict[str, Any]) -> None:
    """One line of the table."""
    from labkit.arena.contest import decode_run
    from labkit.arena.cost import load_model
    from labkit.arena.metrics import figures
    from labkit.arena.workloads import WORKLOADS

    if "run" not in answer:
        out.line(f"✗ {title}: {answer.get('stopped') or answer.get('wrong')}", "red")
        return
    told = figures(decode_run(answer["run"]), WORKLOADS[WORKLOAD], load_model())
    cells = (f"{told.within_slo:.0%}", f"{told.tokens_per_second:,.0f}",
             f"{told.ttft.p50:.3g} s", f"{told.preemptions}")  # fmt: skip
    out.line(f"{title:22}" + "".join(f"{cell:>11}" for cell in cells), "table")
