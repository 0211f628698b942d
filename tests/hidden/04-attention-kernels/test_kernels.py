"""Each kernel through the whole kernel checker: adversarial cases from a fresh seed, watched in the
interpreter, compiled for a GPU, and its bytes counted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from labkit import alarm
from labkit.hidden import KERNEL_SECONDS
from labkit.kernels.check import CAPABILITIES, Checker
from mini_vllm.kernels.attention import MODULE

pytest.importorskip("triton", reason="Triton exists on Linux only")


@pytest.fixture(scope="module")
def seed(request: Any) -> int:
    return int(request.config.getoption("hypothesis_seed", None) or 0) % 2**31


@pytest.fixture(scope="module")
def checker(subject: Any, seed: int) -> Iterator[Checker]:
    """The kernels run where the rest of the submission runs: in sandboxes on the same rung.

    Compiling is most of the time of a grade, so the seed picks the GPU to compile for.
    """
    chosen = CAPABILITIES[seed % len(CAPABILITIES)]
    launcher = subject.launcher.for_kernels
    with Checker(workers=1, launcher=launcher, capabilities=[chosen]) as checker:
        yield checker


@pytest.fixture
def judge(subject: Any, checker: Checker, tmp_path: Path, seed: int) -> Any:
    """Check the kernels of one spec in the subject's file; it must have the full score."""
    file = tmp_path / "triton_paged.py"
    file.write_bytes(subject.launcher.submission[MODULE])

    def run(kernel: str) -> None:
        alarm.arm(KERNEL_SECONDS)
        result = checker.check(kernel, file, seed=seed)
        for stage in result.stages:
            for finding in stage.findings:
                if finding.kind == "todo":
                    raise NotImplementedError(finding.message)
                raise AssertionError(f"{stage.name}: {finding.message} (line {finding.line})")
        assert result.score == 1.0, [(s.name, s.status, s.text) for s in result.stages]

    return run


def test_04_2_store_through_the_checker(judge: Any) -> None:
    """Storing: padding, slices, any row, a cache of more than 2^31 numbers."""
    judge("store_kv")


def test_04_4_decode_through_the_checker(judge: Any) -> None:
    """Decoding: groups, windows, shared pages, far logits, float16, and no byte twice."""
    judge("paged_decode")


def test_04_5_reduction_through_the_checker(judge: Any) -> None:
    """Combining: empty splits, masses far apart, 32 splits."""
    judge("reduce_splits")


def test_04_5_split_decode_through_the_checker(judge: Any) -> None:
    """Decoding in splits and combining them gives what decoding at once gives."""
    judge("split_decode")


def test_04_6_prefill_through_the_checker(judge: Any) -> None:
    """Prefill: ragged, prefixes, windows, padded batches, and no page that nobody sees."""
    judge("paged_prefill")
