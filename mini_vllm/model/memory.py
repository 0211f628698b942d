"""Memory that goes back to the system while a model is loaded; its next use takes some again."""

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
"""In what Linux says of a process's memory, a mapping of a file's code that is as in the file."""


def drop_pages(tensor: Tensor) -> None:
    """Let go of what was read of `tensor`, which lies in a mapped file, and keep its numbers.

    They are read from the file again if they are asked for. Of any other tensor they would be gone.
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

    If it lies in a mapped file, what was read is let go of on the way: not much more than `PIECE`
    bytes of it lie beside the copy.
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
    """Let go of the libraries' code that has run so far; once a process, before it loads weights.

    Half of it only started Python and torch. What runs again comes back, some pages at a time, from
    the system's cache of files. A mapping into which something was written is left as it is.
    """
    try:
        mappings = Path("/proc/self/smaps").read_text()
    except OSError:
        return  # not Linux, or not all of it
    advise = ctypes.CDLL(None).madvise
    for begin, end in ((int(bound, 16) for bound in found) for found in CODE.findall(mappings)):
        advise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), MADV_DONTNEED)


def trim() -> None:
    """Give back what was freed: glibc keeps it, in case that as much is wanted soon."""
    if sys.platform.startswith("linux"):
        give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)  # other libraries have none
        if give_back is not None:
            give_back(0)
