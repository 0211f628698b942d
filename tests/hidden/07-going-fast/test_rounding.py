"""Where a fused kernel rounds, which the checker's tolerance cannot see. Interpreted, once."""

from __future__ import annotations

from typing import Any

import pytest

from labkit.process.worker import Program

pytest.importorskip("triton", reason="Triton exists on Linux only")

NORM = """
import os

os.environ["TRITON_INTERPRET"] = "1"
import torch

from mini_vllm.kernels.fused import rms_norm_kernel

x, output = torch.tensor([[3.0, 1.0, 1.0, 1.0]], dtype=torch.float16), torch.empty(1, 4).half()
weights = torch.tensor(weights, dtype=torch.float16)
rms_norm_kernel[(1, 1)](output, x, x, weights, 4, 0.0, SIZE=4, SIZE_TILE=4, HAS_RESIDUAL=False)
output = output[0].tolist()
"""


def test_07_4_the_row_is_rounded_before_the_weight(subject: Any) -> None:
    """In float16 the row (3, 1, 1, 1) becomes 1.7324219 and 0.5771484, and a weight of 9 makes
    15.59375 of the first. Without the rounding it is 1.7320508, which makes 15.5859375."""
    p = Program()
    p.see(p.execute(NORM, weights=[9.0, 1.0, 1.0, 1.0])["output"])
    assert subject.run(p) == [[15.59375, 0.5771484375, 0.5771484375, 0.5771484375]]
