"""Each fused kernel through the whole kernel checker: adversarial cases from a fresh seed, watched
in the interpreter, compiled for two GPUs, and its bytes counted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from labkit import alarm
from labkit.hidden import KERNEL_SECONDS
from labkit.kernels.check import Checker
from mini_vllm.kernels.pointwise import MODULE

pytest.importorskip("triton", reason="Triton exists on Linux only")


@pytest.fixture(scope="module")
def checker(subject: Any) -> Iterator[Checker]:
    """The kernels run where the rest of the submission runs: in sandboxes on the same rung."""
    with Checker(workers=1, launcher=subject.launcher.for_kernels) as checker:
        yield checker


@pytest.fixture
def judge(subject: Any, checker: Checker, tmp_path: Path, request: Any) -> Any:
    """Check a kernel of the subject's file; it must have the full score."""
    file = tmp_path / "fused.py"
    file.write_bytes(subject.launcher.submission[MODULE])
    seed = int(request.config.getoption("hypothesis_seed", None) or 0)

    def run(kernel: str) -> None:
        alarm.arm(KERNEL_SECONDS)
        result = checker.check(kernel, file, seed=seed % 2**31)
        for stage in result.stages:
            for finding in stage.findings:
                if finding.kind == "todo":
                    raise NotImplementedError(finding.message)
                raise AssertionError(f"{stage.name}: {finding.message} (line {finding.line})")
        assert result.score == 1.0, [(s.name, s.status, s.text) for s in result.stages]

    return run


def test_07_4_norm_through_the_checker(judge: Any) -> None:
    """The norm: slices, heads, odd sizes, large numbers, and each byte once."""
    judge("rms_norm")


def test_07_5_rope_through_the_checker(judge: Any) -> None:
    """The rotation: slices, odd sizes, in place, and nothing beside it."""
    judge("rope")


def test_07_6_silu_through_the_checker(judge: Any) -> None:
    """The activation: tiles, tails, extreme gates, and each byte once."""
    judge("silu_mul")
