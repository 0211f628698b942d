"""Compile and run a submission in child processes: one that compiles, one that interprets.

The child gets source text and names, draws the case itself, and answers with plain data: findings,
counters, and the numbers that the kernel wrote. Expected values never enter it. A grader starts the
children locked up (`labkit.sandbox.build.Sandbox.for_kernels`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import torch

from labkit.inside.child import Limits
from labkit.kernels.cases import find_case
from labkit.kernels.watch.crosscompile import CompileReport, CompileRequest
from labkit.kernels.watch.extract import Submission
from labkit.kernels.watch.findings import Finding
from labkit.kernels.watch.observation import Observation, Traffic
from labkit.process.worker import Launcher, Worker, WorkerError

# Reserved memory counts as well, and some cases have caches of 2^31 elements, mostly untouched.
# The first answer waits for torch and Triton to be imported.
LIMITS = Limits(seconds=90, memory_mb=32 * 1024)


class Sandbox:
    """Two workers, started when they are first needed; close it, or use it in a `with`.

    Args:
        root: the checkout.
        limits: `seconds` is the processor time for one case, or for compiling one kernel.
        launcher: makes what starts a worker, once for each; default: children of this interpreter.
    """

    def __init__(
        self,
        root: Path,
        limits: Limits = LIMITS,
        launcher: Callable[[], Launcher] | None = None,
    ) -> None:
        def worker(name: str) -> Worker:
            return Worker(root, {}, limits, name, launcher() if launcher else None)

        self._interpreter = worker("the kernel interpreter")
        self._compiler = worker("the kernel compiler")

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._interpreter.close()
        self._compiler.close()

    def compile(self, submission: Submission, request: CompileRequest) -> CompileReport | Finding:
        """Compile one kernel."""
        try:
            answer = self._compiler.call(
                "labkit.kernels.watch.sandbox:compile_here",
                submission=asdict(submission),
                request=request.plain(),
            )
            if "finding" in answer:
                return Finding.parse(answer["finding"])
            return CompileReport.parse(answer["report"])
        except WorkerError as error:
            return finding_from(error, submission, request.kernel, "compiling")

    def observe(
        self,
        submission: Submission,
        spec: str,
        case: str,
        seed: int,
        order: str = "natural",
        poison: float = math.nan,
    ) -> Observation | Finding:
        """Run one case under the monitor; see `monitor.run_monitored`."""
        usual = self._interpreter.limits
        seconds = usual.seconds * find_case(spec, case).patience
        self._interpreter.limits = replace(usual, seconds=seconds)
        try:
            answer = self._interpreter.call(
                "labkit.kernels.watch.sandbox:observe_here", submission=asdict(submission),
                spec=spec, case=case, seed=seed, order=order, poison=poison,
            )  # fmt: skip
            outputs = {
                name: torch.as_tensor(values).to(getattr(torch, dtype))
                for name, (dtype, values) in answer["outputs"].items()
            }
            findings = tuple(map(Finding.parse, answer["findings"]))
            return Observation(findings, Traffic.parse(answer["traffic"]), outputs)
        except WorkerError as error:
            return finding_from(error, submission, spec, "running")
        finally:
            self._interpreter.limits = usual


def finding_from(error: WorkerError, submission: Submission, kernel: str, doing: str) -> Finding:
    """What it means that a child gave no answer."""
    detail = str(error.detail)
    if error.kind == "hang":
        # faulthandler writes the innermost frame first.
        place = re.search(rf'File "{re.escape(submission.filename)}", line (\d+)', detail)
        spent = re.search(r"after (.+?); it stood", detail)
        message = f"{doing} it does not end within {spent[1] if spent else 'its time'}"
        known = submission.lines.get(kernel)  # of its `def`, if nothing is known of its inside
        return Finding("timeout", message, kernel, int(place[1]) if place else known)
    if error.kind == "died":
        code = re.search(r"exit code (-?\d+)", detail)
        return Finding("crash", f"{doing} it {_death(int(code[1]) if code else 0)}", kernel)
    return Finding("broken", f"{doing} it, the checker itself failed: {error}", kernel)


def _death(code: int) -> str:
    if code == -11:
        return "ends the process with signal 11: an illegal memory access"
    if code == -9:
        return "ends the process with signal 9: out of memory, or killed from outside"
    return f"ends the process with exit code {code}"
