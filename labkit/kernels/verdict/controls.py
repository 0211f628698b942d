"""Wrong kernels and wrong answers that every check must catch, or it says that it is broken itself.

A bug is an edit of the engine's own kernel, so it stays as close to right as a bug in practice is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from labkit.kernels.verdict.bugs import LAYER_BUGS, Bug
from labkit.kernels.verdict.feature_bugs import FEATURE_BUGS

BUGS = (*LAYER_BUGS, *FEATURE_BUGS)


def bugs_of(spec: str) -> tuple[Bug, ...]:
    """The mistakes in one kernel; the first runs beside every submission."""
    return tuple(bug for bug in BUGS if bug.spec == spec)


def wrong_answers(expected: Tensor, problem: Mapping[str, Any]) -> dict[str, Tensor]:
    """Answers to one output that no comparison may accept: zeros, a constant, an input as it is."""
    mean = expected.double()[expected.double().isfinite()].mean()
    answers = {
        "zeros": torch.zeros_like(expected),
        "a constant": torch.full_like(expected, float(mean)),
    }
    for name, tensor in problem.items():
        if isinstance(tensor, Tensor) and tensor.shape == expected.shape:
            answers[f"a copy of {name}"] = tensor.to(expected.dtype)
    return answers
