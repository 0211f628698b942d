"""Run a kernel of this very process's engine once, watched, and say in words what it did wrong.

What public tests and notebooks use: small problems with a story. The kernels come from the module
that the process would import, so from the learner's file where an overlay stands in for it. The
process must interpret kernels: a phase says so with `environment = { TRITON_INTERPRET = "1" }`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from labkit.course.files import read_python
from labkit.kernels.cases.rules import CaseRules
from labkit.kernels.watch.extract import Submission, extract
from labkit.kernels.watch.findings import Finding
from labkit.kernels.watch.observation import Observation
from labkit.process import reach
from labkit.testing import Divergence
from mini_vllm.kernels.launch import KernelSpec, Problem

SHOWN = 2


class KernelFault(AssertionError):
    """A kernel touched what it should not, or did not run; the message names the line."""


def submission_of(spec: KernelSpec, probe: str = "") -> Submission:
    """The kernels that `import` would give for `spec`, and below them those of the text `probe`.

    Raises:
        NotImplementedError: one that is needed is still a TODO; the message is the TODO's.
        KernelFault: the file holds something that is no kernel.
    """
    found = importlib.util.find_spec(spec.module)
    assert found is not None and found.origin is not None, f"{spec.module} has no file"
    text = read_python(Path(found.origin)) + probe
    result = extract(text, spec, found.origin, text if probe else None)
    if isinstance(result, Submission):
        for name in result.lines:
            reach.enter(f"{spec.module}:{name}")
        return result
    for finding in result:
        if finding.kind == "todo":
            raise NotImplementedError(finding.message)
    raise KernelFault(describe(result, found.origin))


def solve(
    spec: KernelSpec, problem: Problem, rules: CaseRules | None = None, probe: str = ""
) -> Observation:
    """Solve `problem` in place.

    Args:
        probe: kernels that call a function of the module which no launcher starts by itself; then
            `spec` names one of them.

    Raises:
        NotImplementedError, KernelFault: as `submission_of`; KernelFault also if the run itself
            broke a rule.
    """
    from labkit.kernels.watch.monitor import run_monitored

    submission = submission_of(spec, probe)
    seen = run_monitored(submission, spec, problem, rules or CaseRules())
    if seen.findings:
        raise KernelFault(describe(seen.findings, submission.filename))
    return seen


def describe(findings: Sequence[Finding], filename: str) -> str:
    """The first findings with their lines of code, and that there are more. A kernel is named where
    it is first spoken of, and elements are counted where the message has not done so."""
    lines = read_python(Path(filename)).split("\n")
    name, told, kernel = Path(filename).name, [], ""
    for finding in findings[:SHOWN]:
        counted = finding.count < 2 or f"{finding.count} of the " in finding.message
        more = "" if counted else f" (and {finding.count - 1} more such elements)"
        of = "" if finding.kernel == kernel else f"{finding.kernel}: "
        told.append(f"{of}{finding.message}{more}")
        kernel = finding.kernel
        if finding.line and finding.line <= len(lines):
            told.append(f"  {name}:{finding.line}: {lines[finding.line - 1].strip()}")
    left = len(findings) - SHOWN
    if left > 0:
        told.append(f"and {left} finding{'s' * (left > 1)} of another kind")
    return "\n".join(told)


def expect_close(
    yours: Tensor, expected: Tensor, /, *, axes: Sequence[str], at: str, tolerance: float = 1e-5
) -> None:
    """Fail at the first number that is off by more than `tolerance` * (1 + |expected|).

    Args:
        axes: what the tensors' axes count: ("request", "head", "dim").
        at: the situation, in the learner's terms.

    Raises:
        Divergence: names the place; says so if the whole row is what another row should be.
    """
    __tracebackhide__ = True
    if yours.shape != expected.shape or yours.dtype != expected.dtype:
        kind, wanted = (f"{list(t.shape)} {t.dtype}" for t in (yours, expected))
        raise Divergence(f"{at}: shape and type", kind, wanted, {})
    off = (yours.double() - expected.double()).abs()
    # NaN is not <= anything
    wrong = ~(off <= tolerance * (1 + expected.double().abs()))
    if not wrong.any():
        return
    place = tuple(int(i) for i in wrong.nonzero()[0])
    where = ", ".join(f"{axis} {i}" for axis, i in zip(axes, place, strict=True))
    state = {"wrong": f"{int(wrong.sum())} of {wrong.numel()} numbers"}
    twin = _same_row(yours[place[:-1]], expected, tolerance)
    if twin is not None:
        named = ", ".join(f"{axis} {i}" for axis, i in zip(axes, twin, strict=False))
        state["note"] = f"your row is the one expected at {named}"
    got, want = (float(f"{float(t[place]):.5g}") for t in (yours, expected))
    raise Divergence(f"{at}: {where}", got, want, state)


def _same_row(row: Tensor, expected: Tensor, tolerance: float) -> tuple[int, ...] | None:
    """Where `expected` holds these numbers, if anywhere."""
    near = (expected - row).abs() <= tolerance * (1 + expected.abs())
    places = near.all(-1).nonzero()
    return tuple(int(i) for i in places[0]) if len(places) and row.numel() > 1 else None
