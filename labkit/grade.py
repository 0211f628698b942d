"""`make grade-NN`: the hidden suite of a phase, run on your modules.

What is graded lives in a child process (`labkit.worker`); the tests see plain data only. The seed
of random inputs is fresh each time and printed, so that a run can be repeated with `--seed`. Limits
on what the child may do are those of `make lab-NN`; this is no sandbox for code you do not trust.
"""

from __future__ import annotations

import json
import random

import typer

from labkit import overlay, public
from labkit.loop import PHASE, polite, ready_phase
from labkit.manifest import Phase
from labkit.public import PhaseResult
from labkit.screen import MARKS, Screen, command
from labkit.skeleton import is_todo

LARGEST_SEED = 2**31 - 1


@polite
def main(
    phase: str = PHASE,
    seed: int = typer.Option(None, help="repeat the run that printed this seed"),
) -> None:
    """Run the hidden suite of a phase; exit code 0 only if all of it passes."""
    found = ready_phase(phase)
    if seed is None:
        seed = random.randint(0, LARGEST_SEED)
    raise typer.Exit(0 if show(found, run(found, seed), seed) else 1)


def run(phase: Phase, seed: int) -> PhaseResult:
    """The hidden suite with random inputs from `seed`; LAB says on whose modules."""
    mapping = overlay.mapping_for([phase])
    options = ["-p", "labkit.hidden", "-p", "_hypothesis_pytestplugin", f"--hypothesis-seed={seed}"]
    extra = {"LABKIT_SUBJECT": json.dumps(mapping), "HYPOTHESIS_PROFILE": "explore"}
    return public.run_tests(phase, [phase.hidden_tests], {}, options, extra)


def show(phase: Phase, result: PhaseResult, seed: int) -> bool:
    """Print task by task how many hidden tests passed, and which rules did not hold."""
    out = Screen()
    out.line(f"grade-{phase.number} · {phase.title} · seed {seed}", "bold")
    if result.broken:
        out.line(f"the hidden suite did not load: {result.broken.strip()[-600:]}", "red")
        return False
    points = 0.0
    for exercise in phase.exercises:
        tests = result.of_task(exercise)
        passed = sum(test.passed for test in tests)
        complete = bool(tests) and passed == len(tests)
        points += exercise.points if complete else 0
        mark, style = MARKS["passed" if complete else "failed"]
        out.line(f"{mark} {exercise.id} {exercise.title}  ({passed} of {len(tests)})", style, 2)
        for test in tests:
            if not test.passed:
                out.line(f"- {test.title}  ({_kind(test)})", indent=6)
    passed, total = result.public
    worth = sum(exercise.points for exercise in phase.exercises)
    out.line()
    out.line(f"hidden {passed}/{total} · {points:g} of {worth:g} points", "bold")
    again = f"python -m labkit grade {phase.number} --seed {seed}"
    if passed == total and total:
        out.line("Passed. It does not prove that every schedule works; it makes it likely.")
        return True
    out.line(f"again with the same inputs: {again}   ·   {command(phase, 'hint')}")
    return False


def _kind(test: public.Test) -> str:
    """What sort of failure it was, without giving the test away."""
    error = str(test.detail.get("error", ""))
    if test.outcome == "todo" or is_todo(str(test.detail.get("message", ""))):
        return "a TODO is still open"
    if test.outcome == "hang":
        return "an endless loop"
    return "a wrong result" if error in ("AssertionError", "Divergence") else error or test.outcome
