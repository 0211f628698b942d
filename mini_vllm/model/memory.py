"""Release memory to the system while a model is loaded."""

from __future__ import annotations

import ctypes
import functools
import mmap
import re
import sys
from pathlib import Path

from torch import Tensor

MADV_DONTNEED = 4  # of Linux; `mmap` has it for its own mappings only
PIECE = 1 << 22
"""Bytes of a tensor that are copied at a time."""
CODE = re.compile(r"^(\w+)-(\w+) r-xp .* /.*\n(?:[A-Z]\w+:.*\n)*?Anonymous: +0 kB$", re.MULTILINE)
"""Matches an unmodified mapping of a file's code in Linux's list of a process's memory (smaps)."""


def drop_pages(tensor: Tensor) -> None:
    """Release the memory pages of `tensor`, which must lie in a mapped file.

    Its numbers are read from the file again when they are needed. A tensor that does not lie in a
    mapped file would lose its numbers.
    """
    if not sys.platform.startswith("linux"):
        return
    size = mmap.PAGESIZE
    begin = -(-tensor.data_ptr() // size) * size
    num_bytes = (tensor.data_ptr() + tensor.nbytes) // size * size - begin
    if num_bytes > 0:
        pages = ctypes.c_void_p(begin), ctypes.c_size_t(num_bytes)
        ctypes.CDLL(None).madvise(*pages, MADV_DONTNEED)


def copy_in_pieces(target: Tensor, tensor: Tensor) -> None:
    """Copy `tensor`, which nothing else reads, into `target`, of the same shape.

    If it lies in a mapped file, its pages are released on the way, so that not much more than
    `PIECE` bytes of it are in memory beside the copy.
    """
    if tensor.nbytes <= PIECE:
        target.copy_(tensor)
        return
    rows = max(1, PIECE * len(tensor) // tensor.nbytes)
    for to, piece in zip(target.split(rows), tensor.split(rows), strict=True):
        to.copy_(piece)
        drop_pages(piece)


@functools.cache
def drop_code() -> None:
    """Release the pages of library code that has run so far; once per process, before it loads
    weights.

    Half of that code only starts Python and torch. Code that runs again is read back, a few pages
    at a time, from the system's file cache. Mappings that were written to are skipped.
    """
    try:
        mappings = Path("/proc/self/smaps").read_text()
    except OSError:
        return  # not Linux, or a sandbox without /proc
    advise = ctypes.CDLL(None).madvise
    for begin, end in ((int(bound, 16) for bound in found) for found in CODE.findall(mappings)):
        advise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), MADV_DONTNEED)


def trim() -> None:
    """Return freed memory to the system; glibc keeps it for later allocations."""
    if sys.platform.startswith("linux"):
        give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)  # other libraries have none
        if give_back is not None:
            give_back(0)
