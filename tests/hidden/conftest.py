"""The fixtures of the hidden suites, also for a plain `pytest tests/hidden/03-scheduler`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from labkit.inside import alarm
from labkit.judge.hidden import (
    KERNEL_SECONDS,
    pytest_fixture_setup,
    pytest_runtest_call,
    pytest_runtest_setup,
    reference,
    subject,
)

if TYPE_CHECKING:  # it imports torch, which phases without kernels need not wait for
    from labkit.kernels.check import Checker

__all__ = [
    "pytest_fixture_setup",
    "pytest_runtest_call",
    "pytest_runtest_setup",
    "reference",
    "subject",
]


def pytest_report_header() -> str:
    judged = os.environ.get("LAB", "labs")
    return f"judged: {judged} (LAB=labs or LAB=reference); `make grade-NN` shows points per task"


@pytest.fixture(scope="module")
def seed(request: pytest.FixtureRequest) -> int:
    """What the cases of the kernel checker are drawn from: the grade's own seed."""
    return int(request.config.getoption("hypothesis_seed", None) or 0) % 2**31


@pytest.fixture(scope="module")
def checker(subject: Any, seed: int) -> Iterator[Checker]:
    """The kernels run where the rest of the submission runs: in sandboxes on the same rung.

    Compiling is half of the time of a grade, so the seed picks the GPU to compile for.
    """
    from labkit.kernels.check import Checker
    from labkit.kernels.requests import CAPABILITIES

    chosen = CAPABILITIES[seed % len(CAPABILITIES)]
    launcher = subject.launcher.for_kernels
    with Checker(workers=1, launcher=launcher, capabilities=[chosen]) as checker:
        yield checker


@pytest.fixture
def judge(subject: Any, checker: Checker, tmp_path: Path, seed: int) -> Iterator[Any]:
    """Check the kernels of one spec in the subject's file; it must have the full score."""
    from labkit.kernels.cases import SPECS

    def run(kernel: str) -> None:
        alarm.install()  # where none is, as in a plain `pytest`, the alarm ends the process
        alarm.arm(KERNEL_SECONDS)
        module = SPECS[kernel].module
        file = tmp_path / f"{module.rpartition('.')[2]}.py"
        file.write_bytes(subject.launcher.submission[module])
        result = checker.check(kernel, file, seed=seed)
        for stage in result.stages:
            for finding in stage.findings:
                if finding.kind == "todo":
                    raise NotImplementedError(finding.message)
                raise AssertionError(f"{stage.name}: {finding.message} (line {finding.line})")
        assert result.score == 1.0, [(s.name, s.status, s.text) for s in result.stages]

    yield run
    alarm.arm(0)
