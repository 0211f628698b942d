"""What public tests see of a learner's kernel: a hole, a fault with its line, a wrong number."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from labkit.kernels.direct import KernelFault, describe, expect_close, submission_of
from labkit.kernels.watch.findings import Finding
from labkit.process import overlay
from labkit.testing import Divergence
from mini_vllm.kernels.attention import STORE_KV

pytest.importorskip("triton", reason="Triton exists on Linux only")
ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "mini_vllm/attention/triton_paged.py"
AXES = ("request", "dim")

CHILD = """
import torch
from labkit.kernels.direct import solve
from mini_vllm.kernels.attention import STORE_KV
caches = torch.zeros(2, 2, 4, 1, 4)
key = torch.ones(2, 1, 4)
slots = torch.tensor([5, -1])
try:
    solve(STORE_KV, dict(key=key, value=key, key_cache=caches[0], value_cache=caches[1],
                         slot_mapping=slots))
    print("solved", caches[0].sum().item())
except (AssertionError, NotImplementedError) as error:
    print(type(error).__name__, error)
"""


def run(tmp_path: Path, text: str) -> str:
    """Store two tokens with a learner's file in place, in an interpreting process."""
    file = tmp_path / "triton_paged.py"
    file.write_text(text, encoding="utf-8")
    env = overlay.environment(ROOT, {STORE_KV.module: str(file)}, os.environ)
    done = subprocess.run(
        [sys.executable, "-c", CHILD], env=env | {"TRITON_INTERPRET": "1"}, cwd=ROOT,
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_the_file_in_place_is_run(tmp_path: Path) -> None:
    assert run(tmp_path, SOURCE.read_text()) == "solved 4.0\n"


def test_a_fault_names_line_and_element(tmp_path: Path) -> None:
    text = SOURCE.read_text().replace("    if slot >= 0:\n", "    if slot >= -1:\n")
    line = 1 + text[: text.index("        tl.store(key_cache_ptr")].count("\n")
    shown = run(tmp_path, text)
    assert shown.startswith("KernelFault store_kv_kernel: program (1, 0, 0) writes"), shown
    assert f"triton_paged.py:{line}: tl.store(key_cache_ptr" in shown


def test_a_hole_is_a_todo(tmp_path: Path) -> None:
    head, tail = SOURCE.read_text().split("    token = tl.program_id(0).to(tl.int64)\n", 1)
    todo = 'tl.static_assert(False, "TODO 04.2: write it")'
    text = f"{head}    {todo}\n\n\n@triton.jit\n{tail.split('@triton.jit', 1)[1].lstrip()}"
    assert run(tmp_path, text) == "NotImplementedError TODO 04.2: write it\n"


def test_what_is_no_kernel_is_refused(tmp_path: Path) -> None:
    shown = run(tmp_path, SOURCE.read_text() + "\nimport os\n")
    assert shown.startswith("KernelFault") and "import" in shown


def test_a_probe_is_part_of_the_submission() -> None:
    probe = "\n\n@triton.jit\ndef extra(x):\n    return x\n"
    assert "extra" not in submission_of(STORE_KV).lines
    assert "store_kv_kernel" in submission_of(STORE_KV, probe).lines


def test_further_findings_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("one\ntwo\n")
    findings = [Finding("oob", f"reads {n}", "k", n, count=n) for n in (1, 2, 3, 9)]
    assert describe(findings, str(file)).splitlines() == [
        "k: reads 1", "  a.py:1: one", "reads 2 (and 1 more such elements)", "  a.py:2: two",
        "and 2 findings of another kind",
    ]  # fmt: skip


def test_the_first_wrong_number_is_shown_with_its_place() -> None:
    expected = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    yours = expected.clone()
    expect_close(yours + 1e-7, expected, axes=AXES, at="a tiny difference")
    yours[1, 0] = float("nan")
    with pytest.raises(Divergence) as caught:
        expect_close(yours, expected, axes=AXES, at="ana and ben")
    assert caught.value.at == "ana and ben: request 1, dim 0"
    assert json.dumps([caught.value.yours, caught.value.expected]) == "[NaN, 3.0]"
    assert caught.value.state == {"wrong": "1 of 4 numbers"}


def test_a_row_of_another_request_is_recognised() -> None:
    expected = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    with pytest.raises(Divergence) as caught:
        expect_close(expected.flip(0), expected, axes=AXES, at="swapped")
    assert caught.value.state["note"] == "your row is the one expected at request 1"


def test_shape_and_type_come_first() -> None:
    with pytest.raises(Divergence, match="shape and type"):
        expect_close(torch.ones(2), torch.ones(2).half(), axes=("dim",), at="here")


def test_faults_are_assertions() -> None:
    assert issubclass(KernelFault, AssertionError)
