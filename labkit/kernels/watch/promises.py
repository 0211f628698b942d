"""What a kernel promises its compiler, held against the numbers of which it is said.

A compiler believes `tl.multiple_of`, `tl.max_contiguous` and `tl.max_constancy`: it fetches many
bytes at once from what may be no place for that, or takes one number for all of a run. The
interpreter only notes what was promised; here it is looked up.

    tl.max_contiguous(column, 4)   4 5 6 7 | 12 13 14 15   kept: each run of 4 rises by one
    tl.multiple_of(column, 4)      ^         ^             kept: the first of each run is one
    tl.max_constancy(head, 4)      2 2 2 2 | 3 3 3 3       kept: each run of 4 is one number
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl

ALIGNED = 16  # bytes, to which every address of a GPU's allocator is
NAMES = {
    "multiple_of": "tt.divisibility",
    "max_contiguous": "tt.contiguity",
    "max_constancy": "tt.constancy",
}
"""The hints of the language, and what the interpreter notes them as."""


def held(stock: Callable[..., Any]) -> Callable[..., Any]:
    """One of the hints, which raises a ValueError if it or one before it is not kept."""

    def hint(input: Any, values: Any) -> Any:
        result = stock(input, values)
        if isinstance(input, tl.tensor):
            _hold(input.handle)
        return result

    return hint


def _hold(handle: Any) -> None:
    """All that was promised of a tile so far."""
    data, address = np.atleast_1d(handle.data), handle.dtype.is_ptr()
    data = data.astype(np.int8) if data.dtype == bool else data
    step = handle.get_element_ty().primitive_bitwidth // 8 if address else 1
    for axis, size in enumerate(data.shape):
        said = [handle.attr.get(name) for name in NAMES.values()]
        number, runs, equal = (int(values[axis]) if values else 1 for values in said)
        lines = np.moveaxis(data, axis, 0).reshape(size, -1)
        _steps(lines, runs, step, "tl.max_contiguous promises runs of {} that rise by one")
        _steps(lines, equal, 0, "tl.max_constancy promises runs of {} equal numbers")
        _multiples(lines, min(number, ALIGNED) if address else number, step)


def _steps(lines: np.ndarray, length: int, step: int, promise: str) -> None:
    """In each run of `length` along the first axis every number is a step above the one before."""
    inside = np.arange(1, len(lines)) % length != 0
    wrong = np.argwhere((np.diff(lines, axis=0) != step) & inside[:, None])
    if len(wrong):
        place, line = wrong[0]
        before, after = lines[place : place + 2, line]
        raise ValueError(
            f"{promise.format(length)}, and here {after:,} follows {before:,}: a GPU would"
            " believe it"
        )


def _multiples(lines: np.ndarray, number: int, step: int) -> None:
    """The first of each run is a multiple. A compiler can know of no longer runs than there are."""
    breaks = 1 + np.flatnonzero((np.diff(lines, axis=0) != step).any(axis=1))
    first = lines[:: np.gcd.reduce([len(lines), *breaks])]
    wrong = first[first % number != 0]
    if wrong.size:
        raise ValueError(
            f"tl.multiple_of promises a multiple of {number}, and this is {wrong[0]:,}: a GPU would"
            " believe it"
        )
