"""The vocabulary of the cases: a case, its random numbers, and tensors in awkward places."""

from __future__ import annotations

import hashlib
import mmap
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labkit.kernels.cases.rules import CaseRules

PRIMES = (5, 7, 11, 13)
FAR = 2**30
LONG = 4
VAST = 2.0**30
"""Times this a number is beyond float16 and not beyond bfloat16; divided by it, below both of
float16's ends."""
NO_RESERVE = 0x4000 if sys.platform == "linux" else 0  # Linux' MAP_NORESERVE; not in every Python

Setup = tuple[dict[str, Any], CaseRules]


class Draw:
    """Random numbers of one case: the same seed and case give the same numbers anywhere.

    Raises:
        ValueError: the case holds an object's address, which is another one in each process.
    """

    def __init__(self, seed: int, spec: str, case: str) -> None:
        if " at 0x" in case:
            raise ValueError(f"case is {case!r}; give a function by its name, not its address")
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
        once: whether its half-precision outputs must be float64's, rounded once; of some kernels
            all cases are such (`tolerances.ROUNDED_ONCE`).
        cancels: whether values of opposite signs, shared by thousands of keys, all but cancel: the
            honest error is then larger by the sum's condition (`tolerances.long_sum`).
        lone: whether each query sees one token: what comes out is its value, and nothing is summed.
        long: whether its loop is so long that a kernel which takes few numbers at a time needs
            minutes. It has `LONG` times as long, and runs once, with no other seed.
        divides: whether quotients must be right to their last bit. Interpreted, `/` is; what Triton
            compiles it to for a GPU is not, so there the case does not run.
        optional: the parameter with a default that the case passes; "" if it passes none. A kernel
            without this parameter is judged by the others.
    """

    name: str
    about: str
    dtype: str
    make: Callable[[Draw, torch.dtype], Setup]
    graded: bool = False
    once: bool = False
    cancels: bool = False
    lone: bool = False
    long: bool = False
    divides: bool = False
    optional: str = ""

    @property
    def patience(self) -> int:
        """How many times as long as usual the case may take."""
        return LONG if self.long else 1

    @property
    def repeated(self) -> bool:
        """Whether it runs with another seed, another order and another poison, too."""
        return not (self.graded or self.long)


def lazy_zeros(*shape: int, dtype: torch.dtype) -> Tensor:
    """Zeros that take up memory only where they are touched, so that 2^31 of them are cheap.

    Pages that could be shared do not count as a process's data, which graders limit. What is
    reserved beyond the machine's memory would be refused, so nothing is.
    """
    size = torch.Size(shape).numel() * dtype.itemsize
    flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | NO_RESERVE
    return torch.frombuffer(mmap.mmap(-1, size, flags=flags), dtype=dtype).view(shape)


def unfilled(*shape: int, dtype: torch.dtype) -> Tensor:
    """An output before its kernel: NaN, which no sum hides."""
    return torch.full(shape, float("nan"), dtype=dtype)


def inside_wider(tensor: Tensor, before: int, after: int) -> Tensor:
    """The same numbers as a slice of a wider matrix, as q is of qkv; all else of it is NaN.

    Most cases have such rows, whatever they are about: contiguous ones are the exception that a
    kernel must not count on in any of its ways.

    `tensor` is `[T, ...]`; a row of the matrix has `before` and `after` more elements.
    """
    rows = tensor.flatten(1)
    wide = unfilled(len(rows), before + rows.shape[1] + after, dtype=tensor.dtype)
    part = wide[:, before : before + rows.shape[1]]
    part.copy_(rows)
    return part.view(tensor.shape)


def far_apart(tensor: Tensor) -> Tensor:
    """The same rows 2^30 elements apart: the third's offset is no int32, the fifth's no uint32."""
    size = (len(tensor) - 1) * FAR + tensor[0].numel()
    strides = (FAR, *tensor.contiguous().stride()[1:])
    return lazy_zeros(size, dtype=tensor.dtype).as_strided(tensor.shape, strides).copy_(tensor)
