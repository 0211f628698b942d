"""What the kernels of task 04.4 hand on to those of other tasks, which the checker sees there only:
the softmax of rows that see nothing yet, and the mass of an empty split. Interpreted, once each."""

from __future__ import annotations

import math
from typing import Any

import pytest

from labkit.process.worker import Program

pytest.importorskip("triton", reason="Triton exists on Linux only")

PROBE = '''
import triton
import triton.language as tl

from mini_vllm.attention.triton_paged import online_softmax


@triton.jit
def probe(scores_ptr, weights_ptr, state_ptr):
    """Two tiles of 2 rows and 4 keys through online_softmax."""
    row = tl.arange(0, 2)
    places = row[:, None] * 4 + tl.arange(0, 4)[None, :]
    row_max = tl.full([2], float("-inf"), tl.float32)
    row_sum = tl.zeros([2], tl.float32)
    for tile in range(2):
        scores = tl.load(scores_ptr + tile * 8 + places)
        weights, rescale, row_max, row_sum = online_softmax(scores, row_max, row_sum)
        tl.store(weights_ptr + tile * 8 + places, weights)
        tl.store(state_ptr + tile * 4 + row, row_max)
        tl.store(state_ptr + tile * 4 + 2 + row, row_sum)
'''
SOFTMAX = """
import importlib.util, os, pathlib, tempfile

os.environ["TRITON_INTERPRET"] = "1"
import torch

file = pathlib.Path(tempfile.mkdtemp(), "probe.py")
file.write_text(probe)
spec = importlib.util.spec_from_file_location("probe", file)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)

weights, state = torch.full((2, 2, 4), 7.0), torch.full((2, 2, 2), 7.0)
module.probe[(1,)](torch.tensor(scores), weights, state)
weights, state = weights.tolist(), state.tolist()
"""
SPLITS = """
import os

os.environ["TRITON_INTERPRET"] = "1"
import torch

from mini_vllm.attention.triton_paged import paged_decode_kernel

average, mass = torch.full((2, 1, 2, 16), 7.0), torch.full((2, 1, 2), 7.0)
pages = torch.ones(2, 16, 1, 16)
paged_decode_kernel[(2, 1, 2)](
    average, mass, torch.zeros(2, 1, 16), pages, pages,
    torch.tensor([[0, 1], [1, 0]], dtype=torch.int32), torch.tensor([20, 5], dtype=torch.int32),
    16, 2, 1.0, 1000,
    BLOCK_SIZE=16, GROUP=1, HEAD_DIM=16, NUM_SPLITS=2, GROUP_TILE=16, DIM_TILE=16, KEY_TILE=16,
)
average, mass = average[:, 0, :, 0].tolist(), mass[:, 0].tolist()
"""


def test_04_4_a_row_that_sees_nothing_yet(subject: Any) -> None:
    """Row 0 sees its first key in the second tile. Until then its weights and its sum are 0."""
    nothing = [-math.inf] * 4
    scores = [[nothing, [2.0, *nothing[1:]]], [[-200.0, *nothing[1:]], [2.0, 2.0, *nothing[2:]]]]
    p = Program()
    names = p.execute(SOFTMAX, probe=PROBE, scores=scores)
    p.see([names["weights"], names["state"]])
    [[weights, state]] = subject.run(p)
    assert weights == [[[0.0] * 4, [1.0, 0, 0, 0]], [[1.0, 0, 0, 0], [1.0, 1.0, 0, 0]]]
    assert state[0][1] == [0.0, 1.0] and state[1] == [[-200.0, 2.0], [1.0, 3.0]]


def test_04_4_an_empty_split_is_written(subject: Any) -> None:
    """Five tokens are one tile: the second split has none, and writes 0 and -inf."""
    p = Program()
    names = p.execute(SPLITS)
    p.see([names["average"], names["mass"]])
    [[average, mass]] = subject.run(p)
    assert average == [[1.0, 1.0], [1.0, 0.0]] and mass[1][1] == -math.inf
    logarithms = [math.log(16), math.log(4), math.log(5)]
    assert [*mass[0], mass[1][0]] == pytest.approx(logarithms, rel=1e-5)
