"""The corpus that keeps the kernel checker honest: what it must accept, and what it must not.

    honest/NAME/MODULE.py   other correct kernels: all of a module, all accepted
    cheats/, cheats.toml    ways to pass without solving the problem
    equivalent.toml         changes of our kernels that change nothing
    results.json            every other change by rule, and what finds it out
    planted.toml            changes by hand, each with the case that must find it out
    checker.toml            checks taken out of the checker; its self-test fails

All in `tests/corpora/kernel_corpus`. `python -m labkit kernel-corpus` judges
all of it; `--write` also writes the results.
"""

from __future__ import annotations

import json
import queue
import threading
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from labkit.course.root import find_root
from labkit.inside.child import Limits
from labkit.kernels.cases import SPECS, build, cases_of, find_case
from labkit.kernels.cases.draw import Case
from labkit.kernels.check import OTHER_POISON, as_bits
from labkit.kernels.proof.mutate import Mutation, mutations
from labkit.kernels.requests import requests_of
from labkit.kernels.verdict import numbers as verdict
from labkit.kernels.verdict.report import CaseReport
from labkit.kernels.watch.extract import Submission, extract, reference_source
from labkit.kernels.watch.findings import Finding
from labkit.kernels.watch.observation import Observation
from labkit.kernels.workers import LIMITS, Sandbox

SEED = 20
WORKERS = 2
PATIENCE = Limits(seconds=40, memory_mb=LIMITS.memory_mb)  # a change may well never end
PARSING = threading.Lock()
"""Python 3.11 counts the depth of a parse once for all threads, and raises if two parse at once."""


def folder(root: Path | None = None) -> Path:
    """Where the corpus lies."""
    return (root or find_root()) / "tests" / "corpora" / "kernel_corpus"


# ---------------------------------------------------------------- what there is
@dataclass(frozen=True)
class Honest:
    """A correct file, and one kernel of it that must be accepted."""

    name: str
    spec: str
    path: Path


@dataclass(frozen=True)
class Cheat:
    """One row of cheats.toml.

    Attributes:
        number: in the catalogue of known cheats.
        name: the file's name without its ending; "" if the cheat cannot be put into a file.
        spec: the kernel that it pretends to be.
        stage, kind: what the checker must say in CPU mode; "passed" if only a GPU can tell.
        reason: why there is no file, or why CPU mode cannot see it.
        covered: the test that holds the defence instead.
    """

    number: int
    name: str = ""
    spec: str = ""
    stage: str = ""
    kind: str = ""
    reason: str = ""
    covered: str = ""


UNTAUGHT = frozenset(
    {
        "decode_inputs",
        "draw_tokens",
        "gdn_decode",
        "mla_decode",
        "qk_norm_rope_store",
        "gemv",
        "tiled_prefill",
    }
)
"""Kernels that no phase has as a task: none is handed in, so there are no others to judge."""


def honest() -> list[Honest]:
    """Each correct file with each kernel that its module holds."""
    found = []
    for path in sorted(folder().glob("honest/*/*.py")):
        name = f"{path.parent.name}/{path.stem}"
        specs = [spec for spec in SPECS.values() if spec.module.endswith(f".{path.stem}")]
        found += [Honest(name, spec.name, path) for spec in specs]
    return found


def cheats() -> list[Cheat]:
    text = (folder() / "cheats.toml").read_text(encoding="utf-8")
    return [Cheat(**entry) for entry in tomllib.loads(text)["cheats"]]


def usual_of(spec: str) -> dict[str, dict[str, list[int | float]]]:
    """By kernel and parameter: the value that most cases of a spec pass, tiles left out.

    The launcher chooses tiles; addresses are left to chance.
    """
    passed: dict[str, dict[str, Counter[int | float]]] = {}
    for case in cases_of(spec):
        for launch in SPECS[spec].plan(**build(spec, case.name, SEED)[0]):
            known = passed.setdefault(launch.kernel, {})
            for name, value in (launch.args | launch.constexprs).items():
                if isinstance(value, (int, float)) and not name.endswith("_TILE"):
                    known.setdefault(name, Counter())[value] += 1
    return {
        kernel: {name: [count.most_common(1)[0][0]] for name, count in known.items()}
        for kernel, known in passed.items()
    }


@cache
def changes() -> dict[str, tuple[Mutation, tuple[str, ...]]]:
    """Every change of our kernels by its name, with the specs that launch what it changes."""
    found = {}
    taught = [spec for spec in SPECS.values() if spec.name not in UNTAUGHT]
    for module in dict.fromkeys(spec.module for spec in taught):
        specs = [spec for spec in taught if spec.module == module]
        usual = {name: values for spec in specs for name, values in usual_of(spec.name).items()}
        for mutation in mutations(reference_source(specs[0]), usual):
            users = tuple(spec.name for spec in specs if mutation.kernel in spec.kernels)
            found[mutation.name] = (mutation, users)
    return found


def equivalent() -> dict[str, str]:
    """Changes that change nothing, with the reason."""
    text = (folder() / "equivalent.toml").read_text(encoding="utf-8")
    groups = tomllib.loads(text)["equivalent"]
    return {name: group["reason"] for group in groups for name in group["changes"]}


@dataclass(frozen=True)
class Fault:
    """How a wrong kernel is found out: the stage of the check, the finding's kind, the case."""

    stage: str
    kind: str
    spec: str
    case: str = ""


def known_faults() -> dict[str, Fault]:
    """The results of the last run; a case that has found a change once is tried first."""
    path = folder() / "results.json"
    if not path.exists():
        return {}
    data = json.loads(path.read_text(encoding="utf-8"))["changes"]
    return {name: Fault(*fault) for name, fault in data.items()}


# ---------------------------------------------------------------- judging changes
class Bench:
    """Judges many small changes of a kernel, and stops at each one's first fault.

    Unlike a whole check it compiles last: a change that the interpreter finds out in a tenth of a
    second need not be compiled for a minute.
    """

    def __init__(self, root: Path | None = None) -> None:
        self._free: queue.SimpleQueue[Sandbox] = queue.SimpleQueue()
        self._all = [Sandbox(root or find_root(), PATIENCE) for _ in range(WORKERS)]
        for sandbox in self._all:
            self._free.put(sandbox)

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        for sandbox in self._all:
            sandbox.close()

    @contextmanager
    def _sandbox(self) -> Iterator[Sandbox]:
        sandbox = self._free.get()
        try:
            yield sandbox
        finally:
            self._free.put(sandbox)

    def faults(
        self,
        chosen: Sequence[tuple[Mutation, tuple[str, ...]]],
        known: dict[str, Fault],
        tell: Callable[[Mutation, Fault | None], None] = lambda mutation, fault: None,
    ) -> dict[str, Fault | None]:
        """Each change's first fault, or None, several at a time."""

        def one(entry: tuple[Mutation, tuple[str, ...]]) -> Fault | None:
            mutation, specs = entry
            hint = known.get(mutation.name)
            ordered = sorted(specs, key=lambda spec: hint is not None and spec != hint.spec)
            fault = None
            for spec in ordered:
                fault = fault or self.fault(mutation.text, spec, hint.case if hint else "")
            tell(mutation, fault)
            return fault

        with ThreadPoolExecutor(WORKERS) as pool:
            found = pool.map(one, chosen)
            return {entry[0].name: fault for entry, fault in zip(chosen, found, strict=True)}

    def fault(self, text: str, spec: str, first: str = "") -> Fault | None:
        """The first fault of a file's kernel; `first` is the case to begin with."""
        with PARSING:
            submission = extract(text, SPECS[spec], "changed.py")
        if isinstance(submission, list):
            return Fault("lint", submission[0].kind, spec)
        known = cases_of(spec, submission.optional)
        cases = sorted(known, key=lambda case: case.name != first)
        with self._sandbox() as sandbox:
            first_run: dict[str, Observation] = {}
            for case in cases:
                fault = _in_case(sandbox, submission, spec, case, first_run)
                if fault:
                    return fault
            for case in cases:
                fault = (
                    _in_repeat(sandbox, submission, spec, case, first_run)
                    if case.repeated
                    else None
                )
                if fault:
                    return fault
            return _when_compiled(sandbox, submission, spec)


@cache
def _judge(spec: str, case: str, seed: int) -> verdict.Judge:
    return verdict.Judge(spec, find_case(spec, case), seed)


def _reported(
    sandbox: Sandbox, submission: Submission, spec: str, case: Case, seed: int
) -> tuple[CaseReport, Observation | Finding]:
    seen = sandbox.observe(submission, spec, case.name, seed)
    judge = _judge(spec, case.name, seed)
    report = judge.without_run(seen) if isinstance(seen, Finding) else judge.report(seen)
    return report, seen


def _in_case(
    sandbox: Sandbox, submission: Submission, spec: str, case: Case, runs: dict[str, Observation]
) -> Fault | None:
    """The stages `interpreter`, `values` and `efficiency`, for one case."""
    report, seen = _reported(sandbox, submission, spec, case, SEED)
    for finding in report.findings:
        stage = "values" if finding.kind == "values" else "interpreter"
        return Fault(stage, finding.kind, spec, case.name)
    for finding in verdict.efficiency(spec, [report])[0]:
        return Fault("efficiency", finding.kind, spec, case.name)
    assert isinstance(seen, Observation)
    runs[case.name] = seen
    return None


def _in_repeat(
    sandbox: Sandbox, submission: Submission, spec: str, case: Case, runs: dict[str, Observation]
) -> Fault | None:
    """The stage `repeat`, for one case: other numbers, then another order and poison."""
    report, _ = _reported(sandbox, submission, spec, case, SEED + 1)
    for finding in report.findings:
        return Fault("repeat", finding.kind, spec, case.name)
    again = sandbox.observe(submission, spec, case.name, SEED, "shuffled", OTHER_POISON)
    if isinstance(again, Finding):
        return Fault("repeat", again.kind, spec, case.name)
    before = runs[case.name].outputs
    if any(not torch.equal(as_bits(t), as_bits(before[name])) for name, t in again.outputs.items()):
        return Fault("repeat", "race", spec, case.name)
    return None


def _when_compiled(sandbox: Sandbox, submission: Submission, spec: str) -> Fault | None:
    for _, case, request in requests_of(SPECS[spec], submission):
        if isinstance(sandbox.compile(submission, request), Finding):
            return Fault("compile", "compile", spec, case)
    return None
