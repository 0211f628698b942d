"""Memory that goes back to the system while a model is loaded; its next use takes some again."""

from __future__ import annotations

import ctypes
import mmap
import sys

from torch import Tensor

MADV_DONTNEED = 4  # of Linux; `mmap` has it for its own mappings only


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


def trim() -> None:
    """Give back what was freed: glibc keeps it, in case that as much is wanted soon."""
    if sys.platform.startswith("linux"):
        give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)  # other libraries have none
        if give_back is not None:
            give_back(0)
