"""`labkit mutants`: the suites must catch each named wrong answer ("mutant").

`labkit.judge.mistakes` reads them. `--write` records which tests fail on each, so that a learner
who makes the same mistake is told. One with `hidden_only = true` is for the hidden suite alone
(`--hidden`), and until that suite runs it does not count as a survivor.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import typer

from labkit.course import source
from labkit.course.files import entries_as_json, write_text
from labkit.course.manifest import Course, ManifestError, Phase
from labkit.course.root import find_root
from labkit.judge import public
from labkit.judge.hidden_suite import run_hidden
from labkit.judge.mistakes import (
    Mutant,
    entries,
    failing,
    fault_of,
    faults,
    faults_file,
    load,
    run_some,
    vectors_file,
)
from labkit.process import warm


@dataclass(frozen=True)
class Verdict:
    """Which tests one mutant fails; `killed` if one of them belongs to its own task, and `passed`
    if that is so or only a hidden suite that did not run (`hidden` is None) could tell."""

    mutant: Mutant
    public: tuple[str, ...]
    hidden: tuple[str, ...] | None

    @property
    def killed(self) -> bool:
        seen = self.public + (self.hidden or ())
        return any(public.task_of(name) == self.mutant.exercise for name in seen)

    @property
    def passed(self) -> bool:
        return self.killed or (self.mutant.hidden_only and self.hidden is None)

    @property
    def mark(self) -> str:
        if self.killed:
            return "killed"
        return "hidden only" if self.passed else "SURVIVED"


def run(phase: Phase, mutants: list[Mutant], hidden: bool = False, jobs: int = 2) -> list[Verdict]:
    """Run the suites against each mutant, `jobs` at a time."""

    def one(mutant: Mutant) -> Verdict:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, phase.lab_file(mutant.module).name)
            file.write_text(mutant.text, encoding="utf-8")
            mapping = {mutant.module: str(file)}
            seen = public.run_tests(phase, [phase.public_tests], mapping)
            failed = failing(seen)
            secret = None
            if hidden:
                exists = phase.hidden_tests.exists()
                secret = failing(run_hidden(phase, mapping, seed=0)) if exists else ()
        return Verdict(mutant, failed, secret)

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, mutants))


def matrix(verdicts: list[Verdict]) -> str:
    """The kill matrix as text: one row a mutant."""
    width = max((len(v.mutant.name) for v in verdicts), default=0)
    rows = []
    for verdict in verdicts:
        own = [n for n in verdict.public if public.task_of(n) == verdict.mutant.exercise]
        secret = verdict.hidden or ()
        hidden = "not run" if verdict.hidden is None else f"{len(secret):2}"
        counts = f"own {len(own):2}  public {len(verdict.public):2}  hidden {hidden}"
        first = own[0] if own else (verdict.public + secret + ("-",))[0]
        mark, name = verdict.mark, verdict.mutant.name
        rows.append(f"{mark:11} {verdict.mutant.exercise:6} {name:{width}}  {counts}  {first}")
    return "\n".join(rows)


def write_vectors(phase: Phase, verdicts: list[Verdict]) -> None:
    """Record which tests failed. What did not run now stays as it was recorded, as long as its
    mutant is there."""
    path = vectors_file(phase)
    recorded = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    shown = recorded.get("public", {}) | {v.mutant.name: v.public for v in verdicts}
    ran = {v.mutant.name: v.hidden for v in verdicts if v.hidden is not None}
    secret = recorded.get("hidden", {}) | ran
    there = {entry["name"] for entry in entries(phase)}
    document = {
        "hidden": {name: secret[name] for name in sorted(secret) if name in there and secret[name]},
        "public": {name: shown[name] for name in sorted(shown) if name in there},
    }
    write_text(path, entries_as_json(document))


def write_faults(phase: Phase, mutants: list[Mutant], jobs: int = 2) -> None:
    """Record what the first failing test of each mutant's own task fails with."""
    vectors = json.loads(vectors_file(phase).read_text(encoding="utf-8"))["public"]
    tests = public.run_tests(phase, [phase.public_tests], {}, ["--collect-only"]).tests

    def one(mutant: Mutant) -> list[str]:
        mine = (t for t in tests if t.task == mutant.exercise and t.name in vectors[mutant.name])
        first = next(mine, None)
        ran = run_some(phase, mutant, {}, [first.id]).tests if first else []
        failed = [test for test in ran if test.outcome == "failed"]
        return [
            t for test in failed for t in (test.name, fault_of(test, False), fault_of(test, True))
        ]

    with ThreadPoolExecutor(jobs) as pool:
        found = dict(zip([m.name for m in mutants], pool.map(one, mutants), strict=True))
    there = {entry["name"] for entry in entries(phase)}
    kept = {n: fault for n, fault in (faults(phase) | found).items() if fault and n in there}
    write_text(faults_file(phase), entries_as_json({name: kept[name] for name in sorted(kept)}))


def main(
    phases: list[str] = typer.Argument(None, help="phases; default: all that are ready"),
    hidden: bool = typer.Option(False, help="run the hidden suites too"),
    hidden_only: bool = typer.Option(
        False, "--hidden-only", help="--hidden, and only on mistakes that are for these suites"
    ),
    write: bool = typer.Option(False, help="record the failing tests for `make lab-NN`"),
    jobs: int = typer.Option(min(2, os.cpu_count() or 1), help="mutants at a time"),
) -> None:
    """Run the suites against every named mistake; exit 1 if one survives its own task's tests."""
    course = Course(find_root())
    survivors = untold = 0
    try:
        chosen = [course.phase(name) for name in phases] if phases else list(course.ready)
        for phase in chosen:
            mutants = [m for m in load(phase) if m.hidden_only or not hidden_only]
            with warm.children():
                verdicts = run(phase, mutants, hidden or hidden_only, jobs)
                if write:
                    write_vectors(phase, verdicts)
                    write_faults(phase, mutants, jobs)
            print(f"phase {phase.slug}: {len(verdicts)} mutants")
            print(matrix(verdicts))
            survivors += sum(not verdict.passed for verdict in verdicts)
            untold += sum(verdict.passed and not verdict.killed for verdict in verdicts)
    except (ManifestError, source.SourceError) as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from None
    left = f"; {untold} are for the hidden suites alone: run with --hidden" if untold else ""
    print(f"{survivors} survived{left}")
    raise typer.Exit(1 if survivors else 0)
