"""The cases that a kernel is judged by: small problems, each hard in one way.

    cases_attention.py   for the kernels of `attention/triton_paged.py`
    cases_pointwise.py   for the kernels of `kernels/fused.py`
    cases_lora.py        for the kernels of `lora/triton_ops.py`

A case is drawn from a seed, in the child that runs it and again in the parent that judges it, so
only its name and its seed travel. What must be hit exactly (one, a block, a block and one) is
fixed; what a kernel could learn by heart (contents, order of blocks, some lengths) is drawn.
"""

from __future__ import annotations

import hashlib
import mmap
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from labkit.kernels.rules import CaseRules
from mini_vllm.kernels import attention, lora, pointwise
from mini_vllm.kernels.launch import KernelSpec

SPECS: dict[str, KernelSpec] = {
    spec.name: spec for spec in attention.SPECS + pointwise.SPECS + lora.SPECS
}
PRIMES = (5, 7, 11, 13)
FAR = 2**30

Setup = tuple[dict[str, Any], CaseRules]


class Draw:
    """Random numbers of one case: the same seed and case give the same numbers anywhere."""

    def __init__(self, seed: int, spec: str, case: str) -> None:
        digest = hashlib.sha256(f"{seed}:{spec}:{case}".encode()).digest()
        self._random = random.Random(digest)
        self._generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Standard normal numbers, rounded to `dtype`."""
        return torch.randn(shape, generator=self._generator).to(dtype)

    def integer(self, low: int, high: int) -> int:
        """From low to high, both included."""
        return self._random.randint(low, high)

    def prime(self) -> int:
        return self._random.choice(PRIMES)

    def order(self, items: Sequence[int]) -> list[int]:
        """The items in another order."""
        return self._random.sample(items, len(items))


@dataclass(frozen=True)
class Case:
    """One problem.

    Attributes:
        name: short, in kebab case.
        about: what is hard about it, as the learner reads it.
        dtype: "float32", "float16" or "bfloat16".
        make: draws the problem and its rules.
        graded: whether bytes and FLOPs are compared with the least possible. Its sizes are fixed.
    """

    name: str
    about: str
    dtype: str
    make: Callable[[Draw, torch.dtype], Setup]
    graded: bool = False


def lazy_zeros(*shape: int, dtype: torch.dtype) -> Tensor:
    """Zeros that take up memory only where they are touched, so that 2^31 of them are cheap.

    Pages that could be shared do not count as a process's data, which graders limit.
    """
    size = torch.Size(shape).numel() * dtype.itemsize
    flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    return torch.frombuffer(mmap.mmap(-1, size, flags=flags), dtype=dtype).view(shape)


def unfilled(*shape: int, dtype: torch.dtype) -> Tensor:
    """An output before its kernel: NaN, which no sum hides."""
    return torch.full(shape, float("nan"), dtype=dtype)


def inside_wider(tensor: Tensor, before: int, after: int) -> Tensor:
    """The same numbers as a slice of a wider matrix, as q is of qkv; all else of it is NaN.

    `tensor` is `[T, ...]`; a row of the matrix has `before` and `after` more elements.
    """
    rows = tensor.flatten(1)
    wide = unfilled(len(rows), before + rows.shape[1] + after, dtype=tensor.dtype)
    part = wide[:, before : before + rows.shape[1]]
    part.copy_(rows)
    return part.view(tensor.shape)


def far_apart(tensor: Tensor) -> Tensor:
    """The same rows 2^30 elements apart: the offset of the third takes more than 31 bits."""
    size = (len(tensor) - 1) * FAR + tensor[0].numel()
    strides = (FAR, *tensor.contiguous().stride()[1:])
    return lazy_zeros(size, dtype=tensor.dtype).as_strided(tensor.shape, strides).copy_(tensor)


@cache
def cases_of(spec: str) -> tuple[Case, ...]:
    """All cases of a spec, the simplest first.

    Raises:
        ValueError: there is no such spec; the message lists those that exist.
    """
    from labkit.kernels import cases_attention, cases_lora, cases_pointwise

    known = cases_attention.CASES | cases_pointwise.CASES | cases_lora.CASES
    if spec not in known:
        raise ValueError(f"there is no kernel {spec!r}; the kernels are: {', '.join(SPECS)}")
    return known[spec]


def find_case(spec: str, name: str) -> Case:
    """One case by its name.

    Raises:
        ValueError: there is none; the message lists those that exist.
    """
    for case in cases_of(spec):
        if case.name == name:
            return case
    names = ", ".join(case.name for case in cases_of(spec))
    raise ValueError(f"{spec} has no case {name!r}; its cases are: {names}")


def build(spec: str, case: str, seed: int) -> Setup:
    """Draw the problem of a case, with the rules that its tensors obey."""
    chosen = find_case(spec, case)
    return chosen.make(Draw(seed, spec, case), getattr(torch, chosen.dtype))
