"""The program that runs in the interpreter: which one it is, how far it has come, and what was
found so far."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from labkit.kernels.cases.rules import CaseRules
from labkit.kernels.watch.findings import Finding, Findings
from labkit.kernels.watch.memory import Memory, Region
from labkit.kernels.watch.observation import Traffic
from labkit.kernels.watch.shims import index

PATIENCE = 50_000  # loads and stores of one program; 35,000 keys four by four need 27,000
LONG_PATIENCE = 1_000_000  # iterations, or operations, of one program; those keys need 350,000
MAX_LANES = 1 << 21  # of one tile
PRINTED = 500  # tiles that one run prints


class EndlessError(Exception):
    """A program goes on and on, and is stopped."""


class RunningProgram:
    """What is known about the program that runs, and what was found in all of them."""

    def __init__(
        self, memory: Memory, filename: str, poison: float, rules: CaseRules, patience: int
    ) -> None:
        self.memory, self.filename, self.poison = memory, filename, poison
        self.rules, self.patience = rules, patience
        self.findings, self.traffic = Findings(), Traffic()
        self.kernel, self.grid = "", (1, 1, 1)
        self.base = 0  # number of the launch's first program
        self.number = 0
        self.program = (0, 0, 0)
        self.accesses = 0  # loads and stores of this program
        self.steps = 0  # its iterations and operations
        self.printed = 0  # tiles, by all programs
        self.is_number = False  # whether what it loads or stores is no tile
        self.stretch = 0  # number of what a program does between two barriers
        self.shapes: dict[tuple[int, ...], int] = {}
        self.undefined: dict[int, bool] = {}  # lines that left lanes undefined; True = integers
        self.read_odd = False  # NaN or infinity, which explain a NaN that is written

    # ------------------------------------------------------------ which one
    def _linear(self, program: tuple[int, int, int]) -> int:
        return (program[0] * self.grid[1] + program[1]) * self.grid[2] + program[2]

    def _program_of(self, number: int) -> tuple[int, ...]:
        return tuple(int(i) for i in np.unravel_index(number - self.base, self.grid))

    # ------------------------------------------------------------ time
    def barrier(self) -> None:
        """All threads of the program have come this far: what happens now happens later."""
        self.stretch += 1

    def step(self) -> None:
        """One operation or iteration more of this program.

        Raises:
            EndlessError: that is too many.
        """
        self.steps += 1
        if self.steps > self.patience * LONG_PATIENCE:
            raise EndlessError(f"has gone on for {self.patience * LONG_PATIENCE:,} steps")

    def may_print(self) -> bool:
        """Whether one tile more is printed: thousands take minutes, and are not read."""
        self.printed += 1
        if self.printed == PRINTED + 1:
            print(f"tl.device_print: the rest, after the first {PRINTED} times, is left out")
        return self.printed <= PRINTED

    def unrolled_range(self, *bounds: Any, **hints: Any) -> Iterator[int]:
        """`tl.static_range` in kernels: each iteration is a step."""
        for name in ("arg1", "arg2", "step"):
            if name in hints:
                bounds = (*bounds, hints[name])
        for number in range(*bounds):
            self.step()
            yield number

    def counted_range(self, *bounds: Any, **hints: Any) -> Iterator[Any]:
        """`range` and `tl.range` in kernels: their numbers are tensors of one element."""
        return (index(number, bounds) for number in self.unrolled_range(*bounds, **hints))

    def places(self, shape: tuple[int, ...], active: np.ndarray) -> np.ndarray:
        """Which thread, so to speak, each lane is: its number in a tile of this shape."""
        key = tuple(size for size in shape if size > 1)
        number = self.shapes.setdefault(key, len(self.shapes) % (2**31 // MAX_LANES))
        return (number * MAX_LANES + active % MAX_LANES).astype(np.int32)

    # ------------------------------------------------------------ findings
    def line(self) -> int:
        """The learner's line that is being executed: in a helper, the helper's."""
        frame = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename != self.filename:
            frame = frame.f_back  # type: ignore[assignment]
        return frame.f_lineno if frame is not None else 0

    def add(
        self, kind: str, message: str, line: int | None, region: Region | None = None,
        element: tuple[int, ...] | None = None, count: int = 1,
    ) -> None:  # fmt: skip
        message = f"program {self.program} {message}"
        name = region.name if region is not None else None
        self.findings.add(
            Finding(kind, message, self.kernel, line, self.program, name, element, int(count))
        )

    def access(self, mask: np.ndarray) -> tuple[int, np.ndarray]:
        """Begin a load or a store: the learner's line, and the lanes that take part."""
        active = np.flatnonzero(mask)
        self.is_number = mask.size == 1
        self.traffic.lanes += mask.size
        self.traffic.masked_lanes += mask.size - len(active)
        self.accesses += 1
        if self.accesses > self.patience * PATIENCE:
            raise EndlessError(f"has loaded or stored {self.patience * PATIENCE:,} times")
        return self.line(), active

    def _crash(self, error: Exception) -> None:
        """An exception, with the learner's innermost line that led to it."""
        line: int | None = None
        cause = error
        while True:
            trace = cause.__traceback__
            while trace is not None:
                if trace.tb_frame.f_code.co_filename == self.filename:
                    line = trace.tb_lineno
                trace = trace.tb_next
            if cause.__cause__ is None or not isinstance(cause.__cause__, Exception):
                break
            cause = cause.__cause__
        if isinstance(cause, EndlessError):
            self.add("timeout", f"{cause}: this loop does not end soon", line)
        else:
            text = f": {cause}" if str(cause) else ""
            if isinstance(cause, MemoryError):  # which says nothing, as a rule
                text = f": it asks for more memory than there is{text}"
            self.add("crash", f"raises {type(cause).__name__}{text}", line)
