"""`check`: judge one kernel, stage by stage, and stop at the first stage that fails.

    lint          the file holds kernels, and what they consist of could be compiled
    compile       for sm_80 and sm_90, without either
    interpreter   each case under the monitor: bounds, stale and undefined reads, races, coverage
    values        against float64
    repeat        other numbers; and the programs in another order must give the same bits
    efficiency    bytes and FLOPs against the least possible
    controls      wrong answers and a wrong kernel must fail, or the checker is broken
    gpu           in GPU mode only

Later stages are not run where an earlier one has failed: the first finding is the one to look at.
"""

from __future__ import annotations

import atexit
import os
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import torch

from labkit.course.files import read_python
from labkit.course.manifest import Course
from labkit.course.root import find_root
from labkit.kernels.cases import SPECS, cases_of
from labkit.kernels.cases.draw import Case
from labkit.kernels.measure import gpu
from labkit.kernels.requests import CAPABILITIES, requests_of
from labkit.kernels.verdict import controls
from labkit.kernels.verdict import numbers as verdict
from labkit.kernels.verdict.report import CaseReport, CheckResult, Stage
from labkit.kernels.watch.crosscompile import CompileReport, CompileRequest
from labkit.kernels.watch.extract import Submission, extract, reference_source
from labkit.kernels.watch.findings import Finding
from labkit.kernels.watch.observation import Observation
from labkit.kernels.workers import Sandbox
from labkit.process import overlay
from labkit.process.worker import Launcher
from mini_vllm.kernels.launch import KernelSpec

MODES = ("cpu", "gpu")
CORRECT_POINTS = 0.7  # the rest of the score is for efficiency
OTHER_POISON = -1e30
Job = tuple[Submission, str, str, int, str, float]
"""What is interpreted: a submission, spec, case, seed, order of programs, and poison."""
Answer = TypeVar("Answer")


class Checker:
    """Judges kernels one after another with the same few processes.

    Args:
        root: the checkout.
        workers: how many cases are interpreted at the same time.
        launcher: makes what starts a process; default: children of this interpreter.
        capabilities: the GPUs to compile for, of `CAPABILITIES`.
    """

    def __init__(
        self,
        root: Path | None = None,
        workers: int = 2,
        launcher: Callable[[], Launcher] | None = None,
        capabilities: Sequence[int] = CAPABILITIES,
    ) -> None:
        self.root = root or find_root()
        self.capabilities = tuple(capabilities)
        self._sandboxes = [Sandbox(self.root, launcher=launcher) for _ in range(workers)]
        self._free = list(self._sandboxes)
        self._pool = ThreadPoolExecutor(workers)
        self._compiled: dict[Any, CompileReport | Finding] = {}

    def __enter__(self) -> Checker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes."""
        self._pool.shutdown()
        for sandbox in self._sandboxes:
            sandbox.close()

    def check(
        self,
        kernel: str,
        file: str | Path | None = None,
        mode: str = "cpu",
        seed: int | None = None,
        sample: int | None = None,
    ) -> CheckResult:
        """Judge one kernel.

        Args:
            kernel: a spec's name, such as "paged_decode".
            file: the file that holds it; None = the learner's where a phase has one (see
                `default_file`), else the engine's.
            mode: "cpu", or "gpu" for the same and then the GPU.
            seed: what the cases are drawn from; None = a new secret.
            sample: run this many cases only, once each, and compile for the newest GPU only.

        Raises:
            ValueError: no such kernel, mode or file, or no GPU for that mode.
        """
        if kernel not in SPECS:
            raise ValueError(f"there is no kernel {kernel!r}; the kernels are: {', '.join(SPECS)}")
        if mode not in MODES:
            raise ValueError(f"mode {mode!r} is neither 'cpu' nor 'gpu'")
        if mode == "gpu":
            gpu.device()
        path = Path(file) if file else default_file(self.root, SPECS[kernel])
        if not path.is_file():
            raise ValueError(f"{path} is not a file; FILE names the file that holds the kernel")
        begin = time.monotonic()
        seed = secrets.randbits(31) if seed is None else seed
        result = CheckResult(kernel, mode, shown(self.root, path), seed, tools=tools())
        run = _Run(self, result, text_of(path), sample)
        run.all_stages()
        result.seconds = time.monotonic() - begin
        return result

    # ------------------------------------------------------------ what runs in processes
    def observe(self, jobs: Iterable[Job]) -> list[Observation | Finding | None]:
        """Interpret cases, several at a time; the answers in the order of the jobs.

        None = not run: a case before it did not end in time, and one such wait is enough.
        """
        return self._until_timeout(lambda job: self._observe(job), jobs)

    def _until_timeout(
        self, work: Callable[[Any], Answer | Finding], jobs: Iterable[Any]
    ) -> list[Answer | Finding | None]:
        late = threading.Lock()  # held for good by the first that does not end

        def one(job: Any) -> Answer | Finding | None:
            if late.locked():
                return None
            answer = work(job)
            found = getattr(answer, "findings", (answer,))  # an observation has some, or none
            if any(isinstance(each, Finding) and each.kind == "timeout" for each in found):
                return answer if late.acquire(blocking=False) else None
            return answer

        return list(self._pool.map(one, jobs))

    def _observe(self, job: Job) -> Observation | Finding:
        sandbox = self._free.pop()  # the pool has no more threads than there are sandboxes
        try:
            return sandbox.observe(*job)
        finally:
            self._free.append(sandbox)

    def compile(self, submission: Submission, request: CompileRequest) -> CompileReport | Finding:
        """Compile for a GPU, once for each source and request."""
        key = (submission.source, submission.filename, repr(request))
        if key not in self._compiled:
            sandbox = self._free.pop()
            try:
                self._compiled[key] = sandbox.compile(submission, request)
            finally:
                self._free.append(sandbox)
        return self._compiled[key]

    def compile_all(
        self, submission: Submission, requests: Sequence[CompileRequest]
    ) -> list[CompileReport | Finding | None]:
        """Compile several; None = not tried, since one before it did not end in time."""
        return self._until_timeout(lambda request: self.compile(submission, request), requests)


class _Run:
    """One check on its way through the stages."""

    def __init__(
        self, checker: Checker, result: CheckResult, source: str, sample: int | None
    ) -> None:
        self.checker, self.result, self.source = checker, result, source
        self.spec = SPECS[result.kernel]
        self.cases: list[Case] = []
        self.sample, self.whole = sample, sample is None
        self.submission: Submission
        self.judges: list[verdict.Judge] = []
        self.bits: dict[str, dict[str, torch.Tensor]] = {}  # of each case's first run

    def all_stages(self) -> None:
        stages = [self.lint, self.compile, self.interpreter, self.values]
        stages += [self.repeat] if self.whole else []
        stages += [self.efficiency, self.controls]
        stages += [self.gpu] if self.result.mode == "gpu" else []
        for stage in stages:
            outcome = stage()
            self.result.stages.append(outcome)
            if outcome.status == "failed" and outcome.name != "efficiency":
                self.result.score = 0.0
                return

    def lint(self) -> Stage:
        found = extract(self.source, self.spec, self.result.file)
        if isinstance(found, list):
            return Stage("lint", "failed", "", tuple(found))
        self.submission = found
        known = cases_of(self.spec.name, found.optional)
        self.cases = sampled(known, self.sample, self.result.seed)
        self.result.planned = len(known)
        return Stage("lint", "passed")

    def compile(self) -> Stage:
        """Each dtype, and each way that a launcher or the kernel chooses, for each architecture."""
        known = self.checker.capabilities
        chosen = known if self.whole else known[-1:]
        every = requests_of(self.spec, self.submission)
        wanted = [entry for entry in every if entry[0] in chosen]
        done = self.checker.compile_all(self.submission, [request for _, _, request in wanted])
        texts, findings = dict.fromkeys(chosen, "✓"), []
        for (capability, case, _), report in zip(wanted, done, strict=True):
            if isinstance(report, Finding):
                texts[capability] = "✗"
                findings.append(report)
            elif report is not None:
                entry = {"case": case, "capability": capability, **report.plain()}
                self.result.compiled.append(entry)
            elif texts[capability] == "✓":
                texts[capability] = "not run"
        text = " ".join(f"sm_{capability} {mark}" for capability, mark in texts.items())
        return Stage("compile", "failed" if findings else "passed", text, tuple(findings))

    def interpreter(self) -> Stage:
        """Every case once; a case that ends its process ends the stage."""
        seed = self.result.seed
        self.judges = [verdict.Judge(self.spec.name, case, seed) for case in self.cases]
        jobs = [self._job(case.name, seed) for case in self.cases]
        for judge, seen in zip(self.judges, self.checker.observe(jobs), strict=True):
            if isinstance(seen, Finding):
                self.result.cases.append(judge.without_run(seen))
            elif seen is not None:
                self.result.cases.append(judge.report(seen))
                self.bits[judge.case.name] = seen.outputs
        return self._case_stage("interpreter", lambda finding: finding.kind != "values")

    def values(self) -> Stage:
        return self._case_stage("values", lambda finding: finding.kind == "values")

    def _case_stage(self, name: str, of_stage: Any) -> Stage:
        bad = [
            (case, [finding for finding in case.findings if of_stage(finding)])
            for case in self.result.cases
        ]
        bad = [(case, findings) for case, findings in bad if findings]
        total = len(self.result.cases)
        named = tuple(in_case(finding, case) for case, found in bad for finding in found)
        return Stage(name, "failed" if bad else "passed", f"{total - len(bad)}/{total}", named)

    def _job(
        self, case: str, seed: int, order: str = "natural", poison: float = float("nan")
    ) -> Job:
        return (self.submission, self.spec.name, case, seed, order, poison)

    def repeat(self) -> Stage:
        """Another seed must be right too; another order and poison must not change a bit."""
        cases = [case for case in self.cases if case.repeated]
        seed, other = self.result.seed, self.result.seed + 1
        jobs = [self._job(case.name, other) for case in cases]
        jobs += [self._job(case.name, seed, "shuffled", OTHER_POISON) for case in cases]
        seen = self.checker.observe(jobs)
        findings: list[Finding] = []
        for case, again in zip(cases, seen[: len(cases)], strict=True):
            if again is None:
                continue
            judge = verdict.Judge(self.spec.name, case, other)
            report = judge.without_run(again) if isinstance(again, Finding) else judge.report(again)
            findings += [in_case(finding, report) for finding in report.findings]
        for case, shuffled in zip(cases, seen[len(cases) :], strict=True):
            findings += self._compare_bits(case, shuffled)
        text = "other seed ✓ shuffled ✓" if not findings else "✗"
        return Stage("repeat", "failed" if findings else "passed", text, tuple(findings))

    def _compare_bits(self, case: Case, shuffled: Observation | Finding | None) -> list[Finding]:
        if shuffled is None:
            return []
        if isinstance(shuffled, Finding):
            return [shuffled]
        findings = list(shuffled.findings)
        for name, tensor in shuffled.outputs.items():
            first = self.bits[case.name][name]
            if not torch.equal(as_bits(tensor), as_bits(first)):
                message = (
                    f"case {case.name}: {name} changes with the order of programs or with what"
                    " unwritten memory holds; a GPU promises neither"
                )
                findings.append(Finding("race", message, self.spec.kernels[-1], tensor=name))
        return findings

    def efficiency(self) -> Stage:
        findings, points, worst = verdict.efficiency(self.spec.name, self.result.cases)
        self.result.score = CORRECT_POINTS + (1 - CORRECT_POINTS) * points
        text = f"traffic {worst:.2f}x" if worst else "traffic not run"
        return Stage("efficiency", "failed" if findings else "passed", text, tuple(findings))

    def controls(self) -> Stage:
        """What must fail: simple answers in place of the kernel's, and a kernel with a bug."""
        findings = self._wrong_answers() + self._wrong_kernel()
        return Stage("controls", "failed" if findings else "passed", "", tuple(findings))

    def _wrong_answers(self) -> list[Finding]:
        tried: dict[str, bool] = {}
        for judge in self.judges:
            for answer, accepted in judge.wrong_answers().items():
                tried[answer] = tried.get(answer, True) and accepted
        return [
            broken(self.spec, f"every case accepts {answer} as the output of {self.spec.name}")
            for answer, accepted in tried.items()
            if accepted
        ]

    def _wrong_kernel(self) -> list[Finding]:
        bug = controls.bugs_of(self.spec.name)[0]
        kinds = {finding.kind for finding in run_bug(self.checker, bug, self.result.seed)}
        if bug.kind in kinds:
            return []
        return [
            broken(
                self.spec,
                f"a kernel in which {bug.about} is not found out in case {bug.case!r}: expected"
                f" {bug.kind}, got {', '.join(sorted(kinds)) or 'nothing'}",
            )
        ]

    def gpu(self) -> Stage:
        findings, measured = gpu.measure_kernel(self.submission, self.spec, self.result.seed)
        self.result.gpu = measured
        return Stage("gpu", "failed" if findings else "passed", gpu.summary(measured), findings)


def run_bug(checker: Checker, bug: controls.Bug, seed: int) -> list[Finding]:
    """What one case says about the engine's kernel with a bug in it."""
    spec = SPECS[bug.spec]
    source = bug.apply(reference_source(spec))
    submission = extract(source, spec, f"{bug.spec} with a bug")
    if isinstance(submission, list):
        return submission
    seen = checker.observe([(submission, spec.name, bug.case, seed, "natural", float("nan"))])[0]
    assert seen is not None, "the only job"
    if isinstance(seen, Finding):
        return [seen]
    case = next(case for case in cases_of(spec.name) if case.name == bug.case)
    report = verdict.Judge(spec.name, case, seed).report(seen)
    return [*report.findings, *verdict.efficiency(spec.name, [report])[0]]


def broken(spec: KernelSpec, message: str) -> Finding:
    return Finding("broken", message, spec.kernels[-1])


def in_case(finding: Finding, case: CaseReport) -> Finding:
    """The finding with its case in front, which says what was special there."""
    return replace(finding, message=f"case {case.name} ({case.about}): {finding.message}")


def as_bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(verdict.BITS[tensor.itemsize])


def sampled(cases: Sequence[Case], sample: int | None, seed: int) -> list[Case]:
    """All cases, or some: one that is graded, and others drawn from the seed, in their order."""
    if sample is None or sample >= len(cases):
        return list(cases)
    graded = [case for case in cases if case.graded][-1:]
    rest = random.Random(seed).sample([c for c in cases if not c.graded], max(sample - 1, 0))
    chosen = {case.name for case in [*graded, *rest]}
    return [case for case in cases if case.name in chosen]


def text_of(path: Path) -> str:
    """A file's text, as Python would read it; what is no text is replaced, and then refused."""
    try:
        return read_python(path)
    except SyntaxError:
        return path.read_text(encoding="utf-8", errors="replace")


def default_file(root: Path, spec: KernelSpec) -> Path:
    """The learner's file where a ready phase owns the kernels' module, else the engine's.

    With LAB=reference always the engine's.
    """
    for phase in Course(root).ready:
        mapping = overlay.mapping_for([phase])
        if spec.module in mapping:
            return Path(mapping[spec.module])
    return root.joinpath(*spec.module.split(".")).with_suffix(".py")


def shown(root: Path, path: Path) -> str:
    """A path as the learner types it."""
    try:
        return path.resolve().relative_to(root.resolve()).as_posix()
    except ValueError:
        return os.fspath(path)


def tools() -> dict[str, str]:
    """Versions of what judged."""
    names = ("triton", "torch", "numpy")
    return {name: metadata.version(name) for name in names}


@cache
def _shared() -> Checker:
    checker = Checker()
    atexit.register(checker.close)
    return checker


def check(
    kernel: str,
    file: str | Path | None = None,
    mode: str = "cpu",
    seed: int | None = None,
    sample: int | None = None,
) -> CheckResult:
    """Judge one kernel; see `Checker.check`. Processes and compiled kernels are kept."""
    return _shared().check(kernel, file, mode, seed, sample)
