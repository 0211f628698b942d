"""`labkit prove NN`: all that proves a phase, in one command and one line each.

matrix         skeletons red, reference green, nothing leaked, chapters true
mutants        every named mistake is caught, by the public or the hidden suite
history        every historic bug that lies in the phase's modules, or that its suite must catch
suite-quality  what the hidden suite catches, and what it must not refuse
kernel-corpus  what the kernel checker must tell apart; for phases whose learners write kernels
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import typer

from labkit.course.arguments import PHASE
from labkit.course.console import polite, ready_phase
from labkit.course.manifest import Course, Phase
from labkit.course.root import ROOT_VARIABLE
from labkit.course.skeleton import kernels
from labkit.quality import history


@dataclass(frozen=True)
class Proof:
    """One command, or the reason why there is nothing to run."""

    name: str
    words: tuple[str, ...] = ()
    reason: str = ""


def proofs(phase: Phase, quick: bool) -> Iterator[Proof]:
    """What proves a phase; `quick` leaves the samples small."""
    yield Proof("matrix", (phase.number,))
    yield Proof("mutants", (phase.number, "--hidden"))
    bugs = bugs_of(phase)
    if bugs:
        yield Proof("history", (*bugs, *(("--sample", "3") if quick else ())))
    else:
        yield Proof("history", reason="no historic bug lies here")
    yield Proof("suite-quality", (phase.number, *(("--sample", "5") if quick else ())))
    if kernels(phase):
        yield Proof("kernel-corpus", ("--every", "20") if quick else ())
    else:
        yield Proof("kernel-corpus", reason="its learners write no kernel")


def bugs_of(phase: Phase) -> list[str]:
    """Historic bugs that can be put back and that are this phase's: they change one of its modules,
    or its hidden suite must catch them."""
    return [
        bug.id
        for bug in history.load(Course(phase.root))
        if not bug.reason
        and (
            set(bug.texts) & set(phase.modules)
            or bug.caught_by.startswith(f"hidden {phase.number}.")
        )
    ]


def prove(phase: Phase, proof: Proof) -> bool:
    """Run one of them and print its line; its whole output if it fails."""
    if proof.reason:
        print(f"-    {proof.name:<14}           {proof.reason}", flush=True)
        return True
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "labkit", proof.name, *proof.words],
        cwd=phase.root,
        env=os.environ | {ROOT_VARIABLE: str(phase.root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    passed, lines = done.returncode == 0, done.stdout.strip().splitlines()
    verdict, last = "ok  " if passed else "FAIL", lines[-1] if lines else ""
    print(f"{verdict} {proof.name:<14} {time.monotonic() - begun:7.1f} s {last}", flush=True)
    if not passed:
        print("\n".join(f"     {line}" for line in lines), flush=True)
    return passed


@polite
def main(
    phase: str = PHASE,
    quick: bool = typer.Option(False, help="small samples, for a look while you write"),
) -> None:
    """Prove one phase; exit code 1 if one of the five proofs fails."""
    chosen = ready_phase(phase)
    passed = [prove(chosen, proof) for proof in proofs(chosen, quick)]
    print(f"phase {chosen.slug}: {sum(passed)} of {len(passed)} proofs hold")
    raise typer.Exit(0 if all(passed) else 1)
