"""Products with a weight in groups of 4 or 8 bits that is unpacked to floats first, and when that
is faster.

Our own product reads packed numbers. For many rows of x, a library's product of floats may be so
much faster that unpacking the weight is worth it. The number of rows depends on the processor, the
library and the threads. So both are measured once on a machine, for `SECONDS`, at the first product
of `TRIED[0]` rows or more. The result is stored beside the compiled `cpu.cpp`.

The two products round differently. All processes of a machine read the stored result, so that a
request gets the same numbers in each of them. But other machines may give other numbers, and a
measurement that another program disturbed stays until its file is deleted.

MINI_VLLM_UNPACK_FROM overrides the measurement, in rows (`512`, or `never`): for tests, and to get
the same numbers on several machines. `model/narrow.py` executes a step of up to `MOST_TOKENS`
tokens in one native call without asking here, and a larger one only if unpacking is not faster.
"""

from __future__ import annotations

import bisect
import functools
import logging
import math
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from mini_vllm.kernels import native
from mini_vllm.kernels.native_matrix import ROWS, Matrix

logger = logging.getLogger(__name__)

VARIABLE = "MINI_VLLM_UNPACK_FROM"
NEVER = "never"
TRIED = (128, 192, 256, 384, 512, 768, 1024)
"""Rows of x that are measured. For fewer, our own product is always used."""
AT_A_TIME = 512
"""Rows of a weight that are unpacked at a time, so that the floats need little memory."""
COLUMNS, GROUP = 1024, 32
"""Shape of the measured weight, which has `AT_A_TIME` rows."""
SECONDS = 0.3
"""Time limit of all trials of a weight together; a trial ends after its current round."""
ROUNDS = 2, 7
"""Fewest and most rounds of a trial."""
KINDS = {Matrix.GROUPS_OF_4_BITS: torch.int32, Matrix.GROUPS_OF_8_BITS: torch.int8}
"""Kinds of weights that may be unpacked, with the dtype of their unpacked numbers."""


# ---------------------------------------------------------------- as floats
def numbers_of(words: Tensor) -> Tensor:
    """The numbers `[N, K]` in packed words of 4 bits, or pairs of 8."""
    return native.unpack_int4(words) if words.dtype == torch.int32 else native.unpack_pairs(words)


def floats_of(numbers: Tensor, scale: Tensor, shift: Tensor | None, middle: int) -> Tensor:
    """(number - middle) * scale + shift `[N, K]` in float32; `scale` and `shift` are `[N, G]`."""
    groups = numbers.unflatten(1, (scale.shape[1], -1)).float()
    groups.sub_(middle).mul_(scale.float()[..., None])
    if shift is not None:
        groups += shift.float()[..., None]
    return groups.flatten(1)


def multiply(
    x: Tensor,
    words: Tensor,
    scale: Tensor,
    shift: Tensor | None,
    middle: int,
    bias: Tensor | None = None,
) -> Tensor:
    """x @ weight^T + bias `[T, K] -> [T, N]`, with `AT_A_TIME` rows of the weight at a time. The
    arguments are those of `Matrix.of_groups`."""
    num_rows = scale.shape[1]
    output = x.new_empty(len(x), num_rows)
    for start in range(0, num_rows, AT_A_TIME):
        rows = slice(start, start + AT_A_TIME)
        numbers = numbers_of(words[start // ROWS : (start + AT_A_TIME) // ROWS])
        own = None if shift is None else shift[:, rows].t()
        weight = floats_of(numbers, scale[:, rows].t(), own, middle).to(x.dtype)
        torch.mm(x, weight.t(), out=output[:, rows])
    return output if bias is None else output.add_(bias)


# ---------------------------------------------------------------- when
def is_faster(kind: int, num_rows: int, dtype: torch.dtype) -> bool:
    """Whether to unpack a weight of this kind for `num_rows` rows of x with this dtype.

    Raises ValueError for an invalid value of `VARIABLE`.
    """
    if kind not in KINDS:
        return False
    wish = pinned()
    if wish is not None:
        return num_rows >= wish
    if num_rows < TRIED[0]:
        return False
    return num_rows >= least_rows(kind, dtype, torch.get_num_threads(), native.threads())


def pinned() -> float | None:
    """The value of `VARIABLE`; None if it is not set.

    Raises ValueError for anything but a number of rows, of at least 1, or `never`.
    """
    text = os.environ.get(VARIABLE, "")
    try:
        rows = parse(text) if text else None
    except ValueError:
        rows = 0
    if rows is not None and rows < 1:
        raise ValueError(
            f"{VARIABLE} is {text!r}; it must be a number of rows, at least 1, or {NEVER!r}; "
            "without it the engine measures from how many rows on unpacking is faster"
        )
    return rows


def parse(text: str) -> float:
    """The number of rows; infinity for `never`. Raises ValueError."""
    return math.inf if text == NEVER else int(text)


@functools.cache
def least_rows(kind: int, dtype: torch.dtype, *threads: int) -> float:
    """The number of rows from which on unpacking is faster: stored on this machine, or measured
    now.

    Args:
        threads: those of torch, and those of our own products.
    """
    form = {torch.int32: "int4", torch.int8: "int8"}[KINDS[kind]]
    path = kept_file(form, dtype, threads)
    try:
        return read(path)
    except (OSError, ValueError):
        found = measure(kind, dtype)
    try:
        return keep(path, found)
    except OSError as error:
        logger.warning("%s cannot be kept, so each process measures it: %s", path, error)
        return found


def kept_file(form: str, dtype: torch.dtype, threads: tuple[int, ...]) -> Path:
    """The file of the result, beside the library. Its name has everything that the result depends
    on."""
    name = (form, str(dtype).removeprefix("torch."), *map(str, threads))
    return native.beside(f"torch{torch.__version__}-{'-'.join(name)}.txt")


def read(path: Path) -> float:
    """The stored result. Raises OSError if there is no such file, ValueError for invalid
    content."""
    rows = parse(path.read_text(encoding="ascii").strip())
    if rows not in (*TRIED, math.inf):
        raise ValueError(f"{path} has {rows}; it must be one of {TRIED}, or {NEVER!r}")
    return rows


def keep(path: Path, rows: float) -> float:
    """Store `rows` for other processes; returns what is stored then.

    If several processes measure at the same time, the result of the first is used by all. The file
    is created by a hard link: atomically, and without replacing another. Raises OSError.
    """
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        own = Path(folder) / path.name
        own.write_text(NEVER if rows == math.inf else str(rows), encoding="ascii")
        try:
            os.link(own, path)
        except FileExistsError:
            try:
                return read(path)
            except ValueError:  # it is damaged
                os.replace(own, path)
    return rows


# ---------------------------------------------------------------- measured
def measure(kind: int, dtype: torch.dtype, clock: Callable[[], float] | None = None) -> float:
    """The least of `TRIED` for which unpacking is faster; infinity where it is for none.

    Only three are measured, by bisection: if unpacking is faster for some rows, it is for more.
    """
    # For one thread, CPU time: other programs do not change it. Several wait for each other, too.
    clock = clock or (time.thread_time if native.threads() == 1 else time.perf_counter)
    ours, floats = rivals(kind)

    def wins(rows: int) -> bool:
        x = torch.ones(rows, COLUMNS, dtype=dtype)
        return is_shorter(lambda: floats(x), lambda: ours(x), clock)

    with torch.inference_mode():
        place = bisect.bisect_left(TRIED, True, key=wins)
    return (*TRIED, math.inf)[place]


def rivals(kind: int) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """Our product with one weight, and the product with its floats. Uses no random numbers."""
    numbers = torch.ones(AT_A_TIME, COLUMNS, dtype=KINDS[kind])
    words = (native.pack_int4 if kind == Matrix.GROUPS_OF_4_BITS else native.pack)(numbers)
    scale = torch.ones(COLUMNS // GROUP, AT_A_TIME, dtype=torch.float16)
    matrix = Matrix.of_groups(words, scale)
    return lambda x: native.multiply(x, matrix), lambda x: multiply(x, words, scale, None, 0)


def is_shorter(
    one: Callable[[], object], other: Callable[[], object], clock: Callable[[], float]
) -> bool:
    """Whether `one` takes less time than `other`: they alternate, and the best time of each counts.

    So another program slows both, and the best times are those without it.
    """
    fewest, most = ROUNDS
    best, start = [math.inf, math.inf], clock()
    for number in range(most):
        for place, run in enumerate((one, other)):
            begin = clock()
            run()
            best[place] = min(best[place], clock() - begin)
        if number + 1 >= fewest and clock() - start > SECONDS / 3:
            break
    return best[0] < best[1]
