"""Judge what a run brought back: numbers against the oracle, traffic against the least possible.

Runs in the parent, which has built the problem itself from the case's seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labkit.kernels.cases import SPECS, build
from labkit.kernels.cases.draw import Case
from labkit.kernels.verdict import controls, oracles, tolerances
from labkit.kernels.verdict.report import CaseReport
from labkit.kernels.watch.findings import Finding
from labkit.kernels.watch.observation import Observation

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Difference:
    """How far one output is from the oracle.

    Attributes:
        error: relative L2 error of the whole tensor; inf where it is not finite or not that shape.
        limit: the largest that is accepted.
        element: index of the element that is worst.
        got, want: the numbers there.
        why: what is wrong, or "".
    """

    error: float
    limit: float
    element: tuple[int, ...] = ()
    got: float = 0.0
    want: float = 0.0
    why: str = ""


def differ(got: Tensor, want: Tensor, bound: tolerances.Bound) -> Difference:
    """Compare one output with float64. A row (the last axis) may be `ROW_FACTOR` times as far off.

    With a limit of 0 the bits must be equal.
    """
    if got.shape != want.shape:
        return Difference(
            torch.inf, bound.limit, why=f"has shape {list(got.shape)}, not {list(want.shape)}"
        )
    if bound.limit == 0.0:
        return _differ_in_bits(got, want)
    # The mass of nothing is -inf, and what is made of NaN must be NaN.
    same = (got.isinf() & (got == want)) | (got.isnan() & want.isnan())
    got, want = (torch.where(same, 0.0, t) for t in (got, want))
    off = (got.double() - want.double()).abs()
    error = float(off.norm() / want.double().norm().clamp(min=1e-300))
    if not got.isfinite().all():
        off = torch.where(got.isfinite(), 0.0, torch.inf)
        return _at_worst(off, got, want, torch.inf, bound.limit, "is not finite")
    if not want.isfinite().all():
        off = torch.where(want.isfinite(), 0.0, torch.inf)
        return _at_worst(off, got, want, torch.inf, bound.limit, "is wrong")
    if error > bound.limit:
        return _at_worst(off, got, want, error, bound.limit, "is wrong")
    rows = off.flatten(0, -2).norm(dim=-1) if off.dim() > 1 else off
    sizes = want.double().flatten(0, -2).norm(dim=-1) if off.dim() > 1 else want.double().abs()
    floor = 1e-3 * want.double().norm() / max(rows.numel(), 1) ** 0.5
    if (rows > tolerances.ROW_FACTOR * bound.limit * sizes.clamp(min=floor)).any():
        return _at_worst(off, got, want, error, bound.limit, "is wrong in one row")
    return Difference(error, bound.limit)


def _differ_in_bits(got: Tensor, want: Tensor) -> Difference:
    bits = BITS[got.itemsize]
    off = (got.contiguous().view(bits) != want.contiguous().view(bits)).double()
    share = float(off.mean()) if off.numel() else 0.0
    return _at_worst(off, got, want, share, 0.0, "differs") if share else Difference(0.0, 0.0)


def misrounded(got: Tensor, wants: Sequence[Tensor]) -> float:
    """The share of elements that are not one of the float64 results, rounded to the dtype of `got`.

    `wants` are the results of a kernel that rounds in between where it may, or does not; all
    elements are held against the same one, the nearest.
    """
    return min(
        float(((got != want.to(got.dtype)) & ~(got.isnan() & want.isnan())).double().mean())
        for want in wants
    )


def _at_worst(
    off: Tensor, got: Tensor, want: Tensor, error: float, limit: float, why: str
) -> Difference:
    place = int(off.nan_to_num(torch.inf).argmax())
    element = tuple(int(i) for i in torch.unravel_index(torch.tensor(place), off.shape))
    return Difference(error, limit, element, float(got[element]), float(want[element]), why)


class Judge:
    """One case with its expected outputs, drawn once and used for every run of the case."""

    def __init__(self, spec: str, case: Case, seed: int) -> None:
        self.spec, self.case, self.seed = SPECS[spec], case, seed
        self.problem, self.rules = build(spec, case.name, seed)
        self.expected = oracles.expected(spec, self.problem, self.rules.rows)
        choices = oracles.CHOICES.get(spec, ())
        self.others = [
            oracles.expected(spec, self.problem, self.rules.rows, **choice) for choice in choices
        ]
        work = self.spec.work(**self.problem)
        self.minimum = {"bytes": work.num_bytes, "flops": work.flops}

    def differences(self, outputs: Mapping[str, Tensor]) -> dict[str, Difference]:
        """Each judged output beside the oracle's, or beside one that rounds less where it may."""
        judged = self._judged(outputs)
        found = {}
        for name, want in self.expected.items():
            first = differ(judged[name], want, self._bound(name))
            others = self.others if first.why else ()
            tried = (differ(judged[name], other[name], self._bound(name)) for other in others)
            found[name] = next((good for good in tried if not good.why), first)
        return found

    def _judged(self, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What is compared; some rows of a tensor come back with one axis, and get theirs again."""
        judged = oracles.judged(self.spec.name, outputs, self.problem)
        return {
            name: tensor.view(want.shape)
            if tensor.dim() == 1 and tensor.numel() == want.numel()
            else tensor
            for name, want in self.expected.items()
            for tensor in [judged[name]]
        }

    def _bound(self, output: str) -> tolerances.Bound:
        if self.case.lone:
            return tolerances.LONE
        return tolerances.bound(self.spec.name, self.case.dtype, output)

    def report(self, observation: Observation) -> CaseReport:
        """The findings of the monitor, then those of the comparison."""
        differences = self.differences(observation.outputs)
        values = [self._finding(name, d) for name, d in differences.items() if d.why]
        shares = self.misrounded(observation.outputs)
        values = values or self._misrounded_findings(shares)
        return CaseReport(
            **self._fields(),
            errors={name: d.error for name, d in differences.items()},
            bounds={name: d.limit for name, d in differences.items()},
            misrounded=shares,
            traffic=observation.traffic.plain(),
            findings=(*observation.findings, *values),
        )

    def misrounded(self, outputs: Mapping[str, Tensor]) -> dict[str, float]:
        """The shares of misrounded elements, of outputs where that means something."""
        judged = self._judged(outputs)
        return {
            name: misrounded(judged[name], [want, *(other[name] for other in self.others)])
            for name, want in self.expected.items()
            if self._misrounded_limit(name) is not None
            and judged[name].shape == want.shape
            and self._counts(name, judged[name])
        }

    def _misrounded_limit(self, name: str) -> float | None:
        return tolerances.misrounded_limit(self.spec.name, self.case.once, name)

    def _counts(self, name: str, tensor: Tensor) -> bool:
        """Whether it is in half precision, or whole numbers of float32, and large enough."""
        if tolerances.whole(self.spec.name, name):
            return self.case.dtype == "float32" and tensor.numel() >= tolerances.COUNTED_WHOLE
        return tensor.itemsize == 2 and tensor.numel() >= tolerances.COUNTED

    def _misrounded_findings(self, shares: Mapping[str, float]) -> list[Finding]:
        findings = []
        for name, share in shares.items():
            limit = self._misrounded_limit(name)
            if limit is None or share <= limit:
                continue
            whole = tolerances.whole(self.spec.name, name)
            kind = "whole numbers" if whole else self.case.dtype
            message = (
                f"{share:.1%} of {name} are not float64's numbers, rounded to {kind}, but ones"
                f" beside them (at most {limit:.1%}): something is rounded on the way. Keep it in"
                " float32 up to the store"
            )
            findings.append(Finding("values", message, self.spec.kernels[-1], tensor=name))
        return findings

    def without_run(self, finding: Finding) -> CaseReport:
        """The case's report if the run gave no observation."""
        return CaseReport(**self._fields(), findings=(finding,))

    def _fields(self) -> dict[str, Any]:
        case = self.case
        return dict(
            name=case.name, about=case.about, dtype=case.dtype, graded=case.graded,
            minimum=self.minimum,
        )  # fmt: skip

    def _finding(self, name: str, difference: Difference) -> Finding:
        axes, rows = self.rules.rule(name).axes, self.rules.rows
        place = list(difference.element)
        if name.startswith("joined"):
            axes = tuple(axis for axis in self.rules.rule("output").axes if axis != "split")
            axes = axes[: len(place)]
        if rows is not None and len(place) == len(axes):
            place[self.rules.axis] = rows[place[self.rules.axis]]
        elif axes and len(place) != len(axes):  # of a huge tensor, only what had to be written
            axes = ("number written:",)
        index = ", ".join(f"{axis} {i}" for axis, i in zip(axes, place, strict=False)) or ", ".join(
            map(str, place)
        )
        where = f"{name}[{index}]" if difference.element else name
        message = f"{where} {difference.why}"
        if difference.element and difference.limit == 0.0:  # a copy, or a token's number
            message += f": it is {difference.got:.10g}, and must be {difference.want:.10g}"
        elif difference.element:
            message = (
                f"{where} {difference.why}: {difference.got:.6g}, and float64 says"
                f" {difference.want:.6g}"
            )
            if difference.error != torch.inf:
                message += (
                    f" (relative L2 error of {name} {difference.error:.1e}, at most"
                    f" {difference.limit:.1e})"
                )
        kernel = self.spec.kernels[-1]
        return Finding("values", message, kernel, tensor=name, element=tuple(place) or None)

    def wrong_answers(self) -> dict[str, bool]:
        """Wrong answers to all outputs at once, and whether this case would accept them.

        One case may accept one (zeros, where the answer is zeros); all cases together may not.
        """
        tried: dict[str, list[bool]] = {}
        for name, want in self.expected.items():
            bound = self._bound(name)
            dtype = want.dtype if bound.limit == 0.0 else getattr(torch, self.case.dtype)
            for answer, tensor in controls.wrong_answers(want, self.problem).items():
                accepted = not differ(tensor.to(dtype), want, bound).why
                tried.setdefault(answer, []).append(accepted)
        return {answer: all(accepted) for answer, accepted in tried.items()}


def efficiency(spec: str, reports: list[CaseReport]) -> tuple[list[Finding], float, float]:
    """What the graded cases say: findings, the share of points, and the worst traffic ratio."""
    findings: list[Finding] = []
    points, worst = 1.0, 0.0
    for report in reports:
        ratio = report.traffic_ratio
        if not report.graded or ratio is None:
            continue
        limit = tolerances.limits(spec, report.name)
        worst = max(worst, ratio)
        points = min(points, tolerances.share(ratio, limit.traffic))
        if ratio > limit.traffic:
            findings.append(_too_many("traffic", "bytes", spec, report, ratio, limit.traffic))
        flops = report.flops_ratio
        if flops is not None and limit.flops is not None:
            points = min(points, tolerances.share(flops, limit.flops))
            if flops > limit.flops:
                findings.append(_too_many("flops", "FLOPs", spec, report, flops, limit.flops))
    return findings, points, worst


def _too_many(
    kind: str, unit: str, spec: str, report: CaseReport, ratio: float, limit: float
) -> Finding:
    traffic = report.traffic or {}
    count = f"{ratio:.2f} times the least possible {unit}, and {limit:.2f} times is enough"
    lines = {int(line): size for line, size in traffic.get("by_line", {}).items()}
    line = max(lines, key=lambda n: lines[n]) if lines and kind == "traffic" else None
    message = f"{report.about}: it {'moves' if kind == 'traffic' else 'computes'} {count}"
    if line:
        message += f"; this line moves {lines[line]:,} of {sum(lines.values()):,} bytes"
        by_tensor = traffic.get("read_by_tensor", {})
        message += (
            " (" + ", ".join(f"{name} {size:,}" for name, size in by_tensor.items()) + " read)"
        )
    return Finding(kind, message, SPECS[spec].kernels[-1], line)
