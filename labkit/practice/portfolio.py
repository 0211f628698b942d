"""`make portfolio`: one page about the learner's engine, for those it is shown to.

No name stands on it, and nothing is sent anywhere: it is a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from labkit.course.console import Screen, course, polite
from labkit.course.files import write_text
from labkit.course.manifest import Course
from labkit.course.state import State
from labkit.course.waiting import waiting
from labkit.inside import child
from labkit.inspector.page import build_page
from labkit.inspector.sources import recorded
from labkit.practice import hunts, portfolio_page
from labkit.practice.portfolio_page import Row
from labkit.process.worker import Worker, WorkerError
from labkit.trace.runner import Line

RUN_SECONDS = 120.0
SCENES = "labkit.practice.scenes"
OTHERS = {"Hugging Face transformers": "measure_transformers", "vLLM": "measure_vllm"}
SEEDS = (1, 2, 3)


@dataclass(frozen=True)
class Shown:
    """What was measured for the page; each part may be empty.

    Attributes:
        runs: a title, the learner's value, the reference's.
        others: other engines on the same prompts, and their tokens a second.
        recording: a run with the learner's modules, as the inspector reads it.
        arena: a contest, the learner's value, and that of the engine it was measured against.
    """

    runs: Sequence[Row] = ()
    others: Sequence[tuple[str, str]] = ()
    recording: Sequence[Line] = ()
    arena: Sequence[Row] = ()


@polite
def main(
    out: Path = typer.Option(Path("reports/portfolio.html"), "--out", help="the page"),
    measure: bool = typer.Option(True, help="run your modules beside the reference: a minute"),
) -> None:
    """Write one page of your engine: what you wrote, how fast it is, which bugs you found."""
    known = course()
    path = out if out.is_absolute() else known.root / out
    with waiting("portfolio: your modules beside the reference"):
        write_text(path, page(known, look(known) if measure else Shown()))
    Screen().line(f"wrote {out}")


def page(known: Course, shown: Shown) -> str:
    """The page, as HTML that needs no other file."""
    state = State(known.root)
    return portfolio_page.page(
        known,
        state,
        runs=shown.runs,
        others=shown.others,
        inspector=inspector(shown.recording),
        arena=shown.arena,
        solved=[
            (hunt.title, hunt.story)
            for phase in known.ready
            for hunt in hunts.load(phase)
            if "solved" in (state.get("hunts", hunt.id) or {})
        ],
    )


def inspector(lines: Sequence[Line]) -> str:
    """The recording in the inspector, which is a page that needs no other file either."""
    title = "A run of my engine"
    return build_page([recorded(title, list(lines))], title) if lines else ""


def look(known: Course) -> Shown:
    """Run everything that the page shows: a minute, or two where the arena has something to say."""
    mapping = own_modules(known)
    runs, recording = compare(known.root, mapping) if mapping else ([], [])
    others = other_engines(known.root) if runs else []
    return Shown(runs, others, recording, in_the_arena(known))


def own_modules(known: Course) -> dict[str, str]:
    """Module -> the learner's file, of those whose tasks all passed."""
    state = State(known.root)
    return {
        module: str(phase.lab_file(module))
        for phase in known.ready
        for module in phase.modules
        if phase.lab_file(module).exists()
        and {task.id for task in phase.of_module(module)} <= state.standing(phase)
    }


def compare(root: Path, mapping: dict[str, str]) -> tuple[list[Row], list[Line]]:
    """The engine with these modules beside the reference, and a recording of a run."""
    limits = child.Limits(RUN_SECONDS, 0)
    mine, theirs = Worker(root, mapping, limits, "mine"), Worker(root, {}, limits, "reference")
    try:
        with mine, theirs:
            left, right = mine.call(f"{SCENES}:measure"), theirs.call(f"{SCENES}:measure")
            steps = mine.call(f"{SCENES}:recording")
    except WorkerError as error:
        return [("did not finish", str(error)[:200], "")], []
    return [(title, left[title], right[title]) for title in left], steps


def other_engines(root: Path) -> list[tuple[str, str]]:
    """Tokens a second of other engines, or why there are none."""
    rows = []
    for name, scene in OTHERS.items():
        try:
            with Worker(root, {}, child.Limits(RUN_SECONDS, 0), name) as worker:
                rows.append((name, worker.call(f"{SCENES}:{scene}")))
        except WorkerError as error:
            absent = "ModuleNotFoundError" in str(error)
            rows.append((name, "not installed" if absent else "did not finish"))
    return rows


def in_the_arena(known: Course) -> list[Row]:
    """The two capstones, if they are written, beside those whom they had to beat."""
    from labkit.arena.fleet.contest import BASELINE, FleetMatch, play
    from labkit.arena.fleet.traces import TRACES
    from labkit.arena.score import score

    rows: list[Row] = []
    phase = next((phase for phase in known.ready if phase.number == "16"), None)
    passed = State(known.root).standing(phase) if phase else set()
    if phase and "16.6" in passed:
        mine = f"{phase.lab_file('mini_vllm.policies.capstone')}:Capstone"
        found = score(mine, "documents", SEEDS)
        yours = found.disqualified or f"{sum(row.goodput for row in found.rows) / len(SEEDS):.2f}"
        theirs = sum(row.baseline for row in found.rows) / max(len(found.rows), 1)
        title = "my scheduler, documents: requests in time a second (beside vLLM V1's)"
        rows.append((title, yours, f"{theirs:.2f}"))
    if phase and "16.9" in passed:
        mine = f"{phase.lab_file('mini_vllm.policies.capstone_fleet')}:CapstoneFleet"
        for trace in TRACES:
            pair = [play(FleetMatch(policy, trace, SEEDS[0])) for policy in (mine, BASELINE)]
            yours, theirs_ = (
                f"{one.figures.share:.0%}" if one.figures else str(one.disqualified) for one in pair
            )
            title = f"my fleet policy, {trace}: requests in time (beside {BASELINE})"
            rows.append((title, yours, theirs_))
    return rows
