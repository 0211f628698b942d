"""Keep a process from becoming several, and from memory that no limit counts, on Linux.

A limit on memory holds for one process: sixty of them have sixty times as much, and keep every
processor busy meanwhile. Memory without a name (`memfd_create`, `shmget`, a mapping that is shared
but of no file) is counted for no process, so the kernel would end others first. A filter of system
calls, which nothing can take off again, refuses all of it. Threads are not concerned.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
import sys

NO_NEW_PRIVS, SECCOMP, FILTER = 38, 22, 2
LOAD, AND, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
"""Instructions of the kernel's filters."""
NUMBER, MACHINE, FIRST, FOURTH = 0, 4, 16, 40
"""Where a filter finds a call's number, its machine, and the low halves of two arguments."""
ALLOW, REFUSE = 0x7FFF0000, 0x00050000
OTHER_NUMBERS = 0x40000000
"""From here on lies a second set of the same calls, a way around."""
THREAD, SHARED_OF_NO_FILE = 0x00010000, 0x21
CLONE3, MEMFD_SECRET = 435, 447
MACHINES = {"x86_64": (0xC000003E, 56, 9), "aarch64": (0xC00000B7, 220, 222)}
"""The kernel's name for a machine, and its numbers of clone and mmap."""
NEVER = {"x86_64": (57, 58, 29, 319, MEMFD_SECRET), "aarch64": (194, 279, MEMFD_SECRET)}
"""fork and vfork, where they are no clone; then shmget, memfd_create and memfd_secret."""
Line = tuple[int, int, int, int]
"""An instruction, how many lines to skip if its condition holds and if not, and its operand."""


def stay_alone() -> None:
    """From now on this process starts no other; where the system has no such filter, it may."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in MACHINES:
        return
    lines = [struct.pack("HBBI", *line) for line in program(machine)]
    text = ctypes.create_string_buffer(b"".join(lines))
    header = ctypes.create_string_buffer(struct.pack("HP", len(lines), ctypes.addressof(text)))
    prctl = ctypes.CDLL(None).prctl
    if prctl(NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
        prctl(SECCOMP, FILTER, header, 0, 0)


def program(machine: str) -> list[Line]:
    """The filter; what is not refused comes to its last line."""
    name, clone, mmap = MACHINES[machine]
    lines = [(LOAD, 0, 0, MACHINE), (EQUAL, 1, 0, name), _refuse(errno.ENOSYS)]
    lines += [(LOAD, 0, 0, NUMBER), (AT_LEAST, 0, 1, OTHER_NUMBERS), _refuse(errno.ENOSYS)]
    lines += [(EQUAL, 0, 1, CLONE3), _refuse(errno.ENOSYS)]  # the C library takes clone then
    for number in NEVER[machine]:
        lines += [(EQUAL, 0, 1, number), _refuse(errno.EPERM)]
    lines += [(EQUAL, 0, 3, clone), (LOAD, 0, 0, FIRST), (ANY_BIT, 1, 0, THREAD)]
    lines += [_refuse(errno.EPERM)]  # a thread's flags, now loaded, are the number of no mmap
    lines += [(EQUAL, 0, 4, mmap), (LOAD, 0, 0, FOURTH), (AND, 0, 0, SHARED_OF_NO_FILE)]
    lines += [(EQUAL, 0, 1, SHARED_OF_NO_FILE), _refuse(errno.EPERM)]
    return [*lines, (RETURN, 0, 0, ALLOW)]


def _refuse(error: int) -> Line:
    return (RETURN, 0, 0, REFUSE | error)
