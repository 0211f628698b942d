"""What happens to a submission in a child process: compiled in one, interpreted in another.

A child gets source text and names, draws the case itself, and answers with plain data: findings,
counters, and the numbers that the kernel wrote. No expected value is here, nor anything that knows
one (`labkit.sandbox.build`).
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from labkit.kernels.watch.crosscompile import CompileRequest
from labkit.kernels.watch.extract import Submission
from labkit.kernels.watch.findings import Finding

INTERPRET = "TRITON_INTERPRET"


def compile_here(submission: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """The scenario behind `labkit.kernels.workers.Sandbox.compile`."""
    os.environ.pop(INTERPRET, None)  # before Triton is imported
    from labkit.kernels.watch.crosscompile import compile_kernel

    result = compile_kernel(Submission(**submission), CompileRequest.parse(request))
    return {"finding" if isinstance(result, Finding) else "report": result.plain()}


def observe_here(
    submission: dict[str, Any], spec: str, case: str, seed: int, order: str, poison: float
) -> dict[str, Any]:
    """The scenario behind `labkit.kernels.workers.Sandbox.observe`."""
    os.environ[INTERPRET] = "1"  # before Triton is imported
    from labkit.kernels.cases import SPECS, build, find_case
    from labkit.kernels.watch.monitor import run_monitored

    torch.set_num_threads(1)
    problem, rules = build(spec, case, seed)
    kernels = Submission(**submission)
    patience = find_case(spec, case).patience
    seen = run_monitored(kernels, SPECS[spec], problem, rules, order, seed, poison, patience)
    return {
        "findings": [finding.plain() for finding in seen.findings],
        "traffic": seen.traffic.plain(),
        "outputs": {name: _sent(tensor) for name, tensor in seen.outputs.items()},
    }


def _sent(tensor: Tensor) -> list[Any]:
    """A tensor with the name of its dtype, which plain data does not keep for bfloat16."""
    return [str(tensor.dtype).removeprefix("torch."), tensor.detach().clone()]
