"""The result of one check, as data: what ran, what came of it, what did not run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any

from labkit.kernels.watch.findings import Finding

SCHEMA = 1
STAGES = ("lint", "compile", "interpreter", "values", "repeat", "efficiency", "controls", "gpu")


@dataclass(frozen=True)
class Stage:
    """One step of the check.

    Attributes:
        name: one of `STAGES`.
        status: "passed", "failed" or "not run".
        text: what the status line shows: "sm_80 ✓ sm_90 ✓", "11/11", "1.02x".
        findings: why it failed, the most telling first.
    """

    name: str
    status: str
    text: str = ""
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class CaseReport:
    """One case.

    Attributes:
        errors: relative L2 error by output.
        bounds: the largest that is accepted.
        misrounded: share of the elements of an output in half precision, or of whole numbers, that
            are not float64's, rounded.
        traffic: what the monitor counted (`observation.Traffic` as data); None where nothing ran.
        minimum: bytes and FLOPs that the problem needs at least.
        findings: of the monitor and of the comparison.
    """

    name: str
    about: str
    dtype: str
    graded: bool
    errors: dict[str, float] = field(default_factory=dict)
    bounds: dict[str, float] = field(default_factory=dict)
    misrounded: dict[str, float] = field(default_factory=dict)
    traffic: dict[str, Any] | None = None
    minimum: dict[str, int] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.findings

    @property
    def traffic_ratio(self) -> float | None:
        """Requested bytes over the least possible."""
        if self.traffic is None or not self.minimum["bytes"]:
            return None
        return float(
            (self.traffic["bytes_read"] + self.traffic["bytes_written"]) / self.minimum["bytes"]
        )

    @property
    def flops_ratio(self) -> float | None:
        """FLOPs of all `tl.dot` over the least possible; None for a kernel without `tl.dot`."""
        if self.traffic is None or not self.traffic["dot_flops"] or not self.minimum["flops"]:
            return None
        return float(self.traffic["dot_flops"] / self.minimum["flops"])


@dataclass
class CheckResult:
    """Everything that one check found out.

    Attributes:
        kernel: the spec's name.
        mode: "cpu" or "gpu".
        file: the file that was judged, as the learner types it.
        seed: what the cases were drawn from.
        stages: in order; a stage behind one that failed is "not run".
        compiled: one entry for each launch and architecture.
        cases: those that ran.
        planned: how many cases the kernel has; fewer may have been asked for.
        gpu: what GPU mode measured; None if it did not run.
    """

    kernel: str
    mode: str
    file: str
    seed: int
    stages: list[Stage] = field(default_factory=list)
    compiled: list[dict[str, Any]] = field(default_factory=list)
    cases: list[CaseReport] = field(default_factory=list)
    planned: int = 0
    gpu: dict[str, Any] | None = None
    score: float = 0.0
    seconds: float = 0.0
    tools: dict[str, str] = field(default_factory=dict)

    def stage(self, name: str) -> Stage:
        """The stage of that name; "not run" if the check stopped before it."""
        known = {stage.name: stage for stage in self.stages}
        return known.get(name, Stage(name, "not run"))

    @property
    def findings(self) -> list[Finding]:
        return [finding for stage in self.stages for finding in stage.findings]

    @property
    def status(self) -> str:
        """ "todo", "broken" (the checker), "failed", "slow" (right, with too much traffic or too
        many FLOPs) or "passed"."""
        kinds = {finding.kind for finding in self.findings}
        if "broken" in kinds:
            return "broken"
        if "todo" in kinds:
            return "todo"
        failed = {stage.name for stage in self.stages if stage.status == "failed"}
        if failed - {"efficiency"}:
            return "failed"
        return "slow" if failed else "passed"

    @property
    def correct(self) -> bool:
        """No finding but those about speed."""
        return self.status in ("passed", "slow")

    @property
    def passed(self) -> bool:
        return self.status == "passed"

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        data = asdict(self) | {"schema": SCHEMA, "status": self.status}
        data["stages"] = [
            asdict(stage) | {"findings": [finding.plain() for finding in stage.findings]}
            for stage in map(self.stage, STAGES)
        ]
        data["cases"] = [
            asdict(case)
            | {
                "errors": {k: v if isfinite(v) else None for k, v in case.errors.items()},
                "findings": [finding.plain() for finding in case.findings],
                "traffic_ratio": case.traffic_ratio,
                "flops_ratio": case.flops_ratio,
            }
            for case in self.cases
        ]
        return data
