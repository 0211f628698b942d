"""Programs that the chapters print run as they stand there, and print what the chapters say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.course.root import ROOT

PHASES = ROOT / "phases"
ATTENTION = PHASES / "04-attention-kernels" / "00-guide.md"


def test_the_first_kernel_prints_what_the_guide_says(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    shown = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", ATTENTION.read_text("utf-8"), re.S)
    assert shown is not None
    program = tmp_path / "first.py"  # Triton reads a kernel's source from its file
    program.write_text(shown[1], "utf-8")
    env = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, program], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == shown[2]


def test_the_guide_of_phase_04_explains_every_name_that_its_kernels_use() -> None:
    source = (ROOT / "mini_vllm" / "attention" / "triton_paged.py").read_text("utf-8")
    used = set(re.findall(r"tl\.(\w+)", source)) - {"float32", "int64"}
    rows = [line for line in ATTENTION.read_text("utf-8").splitlines() if line.startswith("| `")]
    explained = set(re.findall(r"tl\.(\w+)", "\n".join(rows))) - {"float32", "int64"}
    assert used <= explained
    assert len(explained) >= 15
