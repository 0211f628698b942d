"""Run in a child with TRITON_INTERPRET=1: one small kernel a line in, what the monitor saw out.

A request is {"source", "grid", "order", "poison", "dtype", "launches"}. The problem is always the
same: y = 2 x for three rows of six, and a fourth row without an owner. A second launch has the
scale 3.

    x       [4, 6]  rows 8 apart; the two columns between are NaN; row 3 is not readable
    index   [4]     int32: 2, 0, 1, 70000; the last is not readable
    y       [4, 6]  output; row 3 must stay as it is
    total   [2]     float32, updated in place
"""

from __future__ import annotations

import json
import sys
import weakref
from typing import Any

import torch
from torch import Tensor

from labkit.kernels.cases.rules import CaseRules, TensorRule
from labkit.kernels.watch.extract import Submission, extract
from labkit.kernels.watch.monitor import run_monitored
from mini_vllm.kernels.launch import KernelSpec, Launch, Work


def make_problem(dtype: torch.dtype) -> dict[str, Tensor]:
    wide = torch.full((4, 8), float("nan")).to(dtype)
    wide[:, :6] = torch.arange(1, 25).reshape(4, 6) / 8
    return {
        "x": wide[:, :6],
        "index": torch.tensor([2, 0, 1, 70000], dtype=torch.int32),
        "y": torch.full((4, 6), float("nan"), dtype=dtype),
        "total": torch.zeros(2),
    }


def make_spec(grid: tuple[int, ...], launches: int) -> KernelSpec:
    def plan(x: Tensor, index: Tensor, y: Tensor, total: Tensor) -> list[Launch]:
        pointers = {"x_ptr": x, "index_ptr": index, "y_ptr": y, "total_ptr": total}
        tiles = {"COLS": 6, "TILE": 8}
        return [
            Launch("kernel", grid, {**pointers, "x_stride": 8, "scale": 2.0 + i}, tiles)
            for i in range(launches)
        ]

    return KernelSpec(
        name="toy",
        module="none",
        kernels=("kernel",),
        plan=plan,
        work=lambda **problem: Work(0, 0, 0),
        outputs=("y",),
        updates=("total",),
    )


OWNED = torch.tensor([True, True, True, False])
RULES = CaseRules(
    {
        "x": TensorRule(readable=OWNED[:, None], axes=("row", "column"), why="row 3 has no owner"),
        "index": TensorRule(readable=OWNED),
        "y": TensorRule(writable=OWNED[:, None], required=OWNED[:, None], axes=("row", "column")),
    }
)


EARLIER: list[weakref.ref[Tensor]] = []
"""A tensor of each request so far."""


def answer(request: dict[str, Any]) -> dict[str, Any]:
    spec = make_spec(tuple(request["grid"]), request["launches"])
    source = request["source"]
    submission = extract(source, spec, "learner.py", reference=source)
    if not isinstance(submission, Submission):
        return {"lint": [finding.message for finding in submission]}
    problem = make_problem(getattr(torch, request["dtype"]))
    before = problem["x"].clone(), problem["index"].clone()
    seen = run_monitored(
        submission, spec, problem, RULES, request["order"], 0, float(request["poison"])
    )
    inputs_kept = torch.equal(before[0], problem["x"]) and torch.equal(before[1], problem["index"])
    alive = sum(tensor() is not None for tensor in EARLIER)
    EARLIER.append(weakref.ref(problem["x"]))
    return {
        "alive": alive,
        "findings": [finding.plain() for finding in seen.findings],
        "traffic": seen.traffic.plain(),
        "y": seen.outputs["y"].float().tolist(),
        "total": seen.outputs["total"].tolist(),
        "inputs_kept": inputs_kept,
    }


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
