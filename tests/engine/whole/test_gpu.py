"""What only a GPU can show; where there is none, the same checks in Triton's interpreter, as far as
it goes. The checks themselves are plain functions in `labkit.gpu.checks`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from labkit.gpu import checks as gpu_checks
from labkit.gpu.checks import CHECKS, NEED_CUDA

ROOT = Path(__file__).parents[3]
SLOW = ("a_hybrid_gives_the_tokens_of_plain_torch",
        "greedy_tokens_equal_those_of_plain_torch", "schedules_change_no_token",
        "seeds_draw_the_numbers_of_the_cpu")  # fmt: skip
HERE = [
    pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name
    for name in CHECKS
    if name not in NEED_CUDA
]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="not run: there is no CUDA device")
@pytest.mark.parametrize("name", CHECKS)
def test_on_the_gpu(name: str) -> None:
    result = gpu_checks.run(name, "cuda")
    assert "saw" in result, result


@pytest.mark.parametrize("name", HERE)
def test_in_the_interpreter(name: str) -> None:
    pytest.importorskip("triton", reason="Triton exists on Linux only")
    done = subprocess.run(
        [sys.executable, "-m", "labkit.gpu.checks", name, "cpu"],
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)},
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    result = json.loads(done.stdout.splitlines()[-1]) if done.stdout else done.stderr
    assert "saw" in result, result


def test_an_error_beyond_rounding_is_wrong() -> None:
    right = torch.arange(1.0, 9.0)
    assert gpu_checks.expect_close("equal", right.half(), right) == 0.0
    for dtype, bound in gpu_checks.BOUNDS.items():
        with pytest.raises(AssertionError, match=r"twice: relative error 1\.0e\+00"):
            gpu_checks.expect_close("twice", (2 * right).to(dtype), right)
        with pytest.raises(AssertionError):
            gpu_checks.expect_close("beyond", right.double().mul(1 + 3 * bound).to(dtype), right)


def test_another_token_is_wrong() -> None:
    right = [[1, 2], [3], [4], [5]]
    gpu_checks.expect_equal("same", right, right)
    with pytest.raises(AssertionError, match=r"The capital.*\[9\], expected \[3\]"):
        gpu_checks.expect_equal("other", [[1, 2], [9], [4], [5]], right)


def test_a_check_that_raises_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(device: str) -> str:
        raise RuntimeError(f"{device} is on fire")

    monkeypatch.setitem(CHECKS, "broken", broken)
    result = gpu_checks.run("broken", "cuda")
    assert (
        result["wrong"].startswith("RuntimeError: cuda is on fire (")
        and "test_gpu.py:" in (result["wrong"])
    )


def test_a_wrong_engine_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without kernels the backend is another one; a sampler with another hash draws others."""
    monkeypatch.setattr("mini_vllm.attention.triton_backend.INTERPRETED", False)
    assert "CpuAttention" in gpu_checks.run("the_engine_uses_the_kernels", "cpu")["wrong"]
