"""Named wrong answers ("mutants"): the suites must catch each, and a learner who makes one is told.

`tests/corpora/mutants/NN-slug.toml` holds them; `tests/corpora/mutants/NN-slug.json` (written by
`--write`) holds which tests fail on each. A learner whose failures equal a mutant's has probably
made that mistake.

An entry with `hidden_only = true` is a mistake that the public tests let pass on purpose: the
hidden suite must catch it (`--hidden`), and until that suite runs it does not count as a survivor.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from labkit.course import source
from labkit.course.files import write_text
from labkit.course.manifest import Course, ManifestError, Phase, find_root
from labkit.judge import public
from labkit.judge.hidden_suite import run_hidden
from labkit.process import warm


@dataclass(frozen=True)
class Mutant:
    """One mistake: `function` of the exercise's module with another body."""

    exercise: str
    name: str
    misconception: str
    module: str
    function: str
    text: str
    hidden_only: bool = False


def mutants_file(phase: Phase) -> Path:
    return phase.root / "tests" / "corpora" / "mutants" / f"{phase.slug}.toml"


def vectors_file(phase: Phase) -> Path:
    return mutants_file(phase).with_suffix(".json")


def entries(phase: Phase) -> list[dict[str, Any]]:
    """The phase's entries as they are written, unchecked and quick to read.

    Raises:
        ManifestError: not TOML.
    """
    path = mutants_file(phase)
    if not path.exists():
        return []
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        shown = path.relative_to(phase.root).as_posix()
        raise ManifestError(f"{shown}: not valid TOML: {error}") from None
    return list(document.get("mutants", []))


def load(phase: Phase) -> list[Mutant]:
    """The phase's mutants, each with the whole text of its module.

    Raises:
        ManifestError: an entry is incomplete, names no hole, or does not change the function.
    """
    shown = mutants_file(phase).relative_to(phase.root).as_posix()
    mutants = [
        load_one(phase, f"{shown}: mutants[{i}]", entry) for i, entry in enumerate(entries(phase))
    ]
    names = [mutant.name for mutant in mutants]
    for name in names:
        if names.count(name) > 1:
            raise ManifestError(f"{shown}: two mutants are called {name!r}")
    return mutants


def load_one(phase: Phase, where: str, entry: dict[str, Any]) -> Mutant:
    """One entry of the file, checked, with the whole text of its module.

    Raises:
        ManifestError: see :func:`load`; `where` begins the message.
    """
    required = {"exercise", "name", "misconception", "function"}
    ways = [{"body"}, {"search", "replace"}]
    if set(entry) - {"hidden_only"} not in [required | way for way in ways]:
        raise ManifestError(
            f"{where}: keys are {', '.join(sorted(entry))}; give exercise, name, misconception,"
            " function, either body or search and replace, and hidden_only = true if only the"
            " hidden suite can catch it"
        )
    if entry.get("hidden_only", True) is not True:
        raise ManifestError(
            f"{where}: hidden_only is {entry['hidden_only']!r}; it must be true, or left out"
        )
    exercise = phase.exercise(entry["exercise"])
    reference = phase.reference_file(exercise.module).read_text(encoding="utf-8")
    function = source.find(reference, entry["function"], exercise.module)
    body = entry.get("body") or _patched(where, source.body_text(reference, function), entry)
    text = source.replace_body(reference, function.name, body)
    if function.name not in exercise.functions:
        raise ManifestError(f"{where}: {function.name} is not a function of task {exercise.id}")
    return Mutant(
        exercise.id,
        entry["name"],
        entry["misconception"].strip(),
        exercise.module,
        function.name,
        text,
        "hidden_only" in entry,
    )


def _patched(where: str, body: str, entry: dict[str, Any]) -> str:
    count = body.count(entry["search"])
    if count != 1:
        raise ManifestError(
            f"{where}: search text is {count} times in the body of {entry['function']}; it must be"
            f" there once. The body is:\n{body}"
        )
    return body.replace(entry["search"], entry["replace"])


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


def failing(result: public.PhaseResult) -> tuple[str, ...]:
    """Names of the tests that did not pass; a suite that cannot load fails as a whole."""
    if result.broken:
        return ("<import>",)
    return tuple(sorted(test.name for test in result.tests if not test.passed))


def match(result: public.PhaseResult) -> Mutant | None:
    """The mutant whose failures equal the learner's, as far as tests that reached a hole can
    tell; None if several do, for then each of their texts may be false."""
    path = vectors_file(result.phase)
    if not path.exists():
        return None
    vectors: dict[str, list[str]] = json.loads(path.read_text(encoding="utf-8"))["public"]
    judged = {test.name for test in result.tests if test.outcome in ("passed", "failed", "hang")}
    mine = {test.name for test in result.tests if test.outcome in ("failed", "hang")}
    tasks = {public.task_of(name) for name in mine}
    try:
        known = load(result.phase)
    except (ManifestError, source.SourceError):
        return None
    alike = [
        mutant
        for mutant in known
        if mutant.exercise in tasks and set(vectors.get(mutant.name, ())) & judged == mine
    ]
    return alike[0] if len(alike) == 1 else None


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
        "public": {name: list(failed) for name, failed in shown.items() if name in there},
        "hidden": {
            name: list(failed) for name, failed in secret.items() if name in there and failed
        },
    }
    write_text(path, json.dumps(document, indent=1, sort_keys=True) + "\n")


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
            print(f"phase {phase.slug}: {len(verdicts)} mutants")
            print(matrix(verdicts))
            survivors += sum(not verdict.passed for verdict in verdicts)
            untold += sum(verdict.passed and not verdict.killed for verdict in verdicts)
            if write:
                write_vectors(phase, verdicts)
    except (ManifestError, source.SourceError) as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from None
    left = f"; {untold} are for the hidden suites alone: run with --hidden" if untold else ""
    print(f"{survivors} survived{left}")
    raise typer.Exit(1 if survivors else 0)
