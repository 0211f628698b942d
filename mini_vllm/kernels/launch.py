"""One kernel call as data, so that the engine can run it and a checker can examine it first."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from torch import Tensor

Problem = Mapping[str, Any]
"""The tensors and numbers of one kernel problem by name, outputs included."""


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least `n`. Sizes of Triton's tiles are powers of two."""
    return 1 << max(n - 1, 0).bit_length()


def tensor_bytes(*tensors: Tensor) -> int:
    """Bytes of all elements together; gaps between rows do not count."""
    return sum(tensor.numel() * tensor.itemsize for tensor in tensors)


@dataclass(frozen=True)
class Launch:
    """One call of one kernel."""

    kernel: str  # name of the `@triton.jit` function
    grid: tuple[int, ...]  # programs along each axis
    args: dict[str, Tensor | int | float]  # runtime arguments by parameter name, in order
    constexprs: dict[str, int | float | bool]  # compile-time arguments by parameter name
    num_warps: int = 4
    num_stages: int = 2

    def run(self, kernels: ModuleType) -> None:
        """Launch the kernel of this name in `kernels`."""
        kernel = getattr(kernels, self.kernel)
        kernel[self.grid](
            **self.args, **self.constexprs, num_warps=self.num_warps, num_stages=self.num_stages
        )


@dataclass(frozen=True)
class Work:
    """The least work of a problem, for any kernel: every input is read once, every output written
    once."""

    bytes_read: int
    bytes_written: int
    flops: int

    @property
    def num_bytes(self) -> int:
        return self.bytes_read + self.bytes_written

    def __add__(self, other: Work) -> Work:
        return Work(
            self.bytes_read + other.bytes_read,
            self.bytes_written + other.bytes_written,
            self.flops + other.flops,
        )


@dataclass(frozen=True)
class KernelSpec:
    """The description of a kernel, besides its code.

    `plan(**problem)` gives the launches that solve a problem, in order; `work(**problem)` its least
    bytes and FLOPs. The kernels write the tensors in `outputs`, and read and write those in
    `updates` in place. They change nothing else.
    """

    name: str
    module: str  # where the engine's kernels are
    kernels: tuple[str, ...]  # the `@triton.jit` functions that a submission must define
    plan: Callable[..., list[Launch]]
    work: Callable[..., Work]
    outputs: tuple[str, ...] = ()  # each element is written
    updates: tuple[str, ...] = ()  # read and written in place, at some or all elements

    def run(self, **problem: Any) -> None:
        """Solve `problem` with the engine's kernels, which are imported when first needed."""
        kernels = importlib.import_module(self.module)
        for launch in self.plan(**problem):
            launch.run(kernels)
