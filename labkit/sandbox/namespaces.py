"""Start a program in Linux namespaces of its own: other mounts, other processes, no network.

    python -I -S namespaces.py '{"readable": […], "scratch": "…", "hidden": […], …}' -- words…

The program sees a new root that holds `readable` (for reading), `scratch` (for writing, in memory,
of limited size), /dev/null and its like, and its own /proc. Everything else does not exist for it:
hidden tests, solutions, other users' files. `hidden` is covered even where it lies below something
readable. It is process 1 of its world: when it ends, all its children end, and no process outside
can be named by it. SIGTERM lets this process end it, and so does the end of the grader; a kill
of this process instead may leave the program behind, which can give up dying with its parent.

Run by root it needs no user namespace and gives the program another uid; run by anyone else it
makes a user namespace, which some systems forbid. Standard library only; it exits with 125 and one
line on stderr if the system says no.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import platform
import re
import signal
import sys
from pathlib import Path
from typing import Any

REFUSED = 125
NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = (
    0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND, REC, PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
DETACH = 2
PDEATHSIG, NO_NEW_PRIVS = 1, 38
SETSIG = 10
"""Of Linux's fcntl; Python has no name for it."""
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
DEVICES = ("null", "zero", "full", "random", "urandom")
FILES = 20_000
"""In a folder that may be written: each takes a kilobyte of memory that no limit counts."""
KEPT = RDONLY | NOSUID | NODEV | NOEXEC
"""Flags of a mount that its copy must keep; statvfs tells them with the same bits."""

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    """
    Raises:
        OSError: the call failed; it names the call.
    """
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    words = [word.encode() for word in (source, target, kind)]
    check(libc.mount(*words, ctypes.c_ulong(flags), data.encode()), f"mount {target}")


def enter(uid: int) -> None:
    """Leave the namespaces of this process; the next fork is process 1 of the new ones."""
    flags = NEWNS | NEWUTS | NEWIPC | NEWPID | NEWNET
    me, group = os.getuid(), os.getgid()
    check(libc.unshare(flags | (0 if me == 0 else NEWUSER)), "unshare")
    if me != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {me} 1")
        Path("/proc/self/gid_map").write_text(f"{uid} {group} 1")


def build_root(root: str, spec: dict[str, Any]) -> None:
    """A root that holds what the program may see, mounted at `root`; parents before children, so
    that something readable may lie below something hidden."""
    mount("none", "/", "", REC | PRIVATE)
    mount("tmpfs", root, "tmpfs", NOSUID | NODEV, "size=16m,mode=755")
    readable = {*spec["readable"], *(f"/dev/{device}" for device in DEVICES)}
    for path in sorted(readable | set(spec["hidden"])):
        if path in readable:
            show(root, path)
        elif os.path.isdir(root + path):
            mount("tmpfs", root + path, "tmpfs", NOSUID | NODEV, "size=64k,mode=755")
    lock(root)
    for path in ("/dev/shm", spec["scratch"]):
        os.makedirs(root + path, exist_ok=True)
        size = f"size={spec['scratch_mb']}m,nr_inodes={FILES},mode=700"
        size += f",uid={spec['uid']},gid={spec['uid']}"
        mount("tmpfs", root + path, "tmpfs", NOSUID | NODEV, size)
    os.symlink("/proc/self/fd", f"{root}/dev/fd")
    os.makedirs(f"{root}/proc")
    mount("proc", f"{root}/proc", "proc", NOSUID | NODEV | NOEXEC)
    mount("none", root, "", REMOUNT | BIND | RDONLY | NOSUID | NODEV)


def show(root: str, path: str) -> None:
    """Let a path of the outside be at its place in the new root; a symlink stays one."""
    target = root + path
    if os.path.lexists(target):
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(path):
        os.symlink(os.readlink(path), target)
        return
    if os.path.isdir(path):
        os.makedirs(target)
    else:
        open(target, "x").close()
    mount(path, target, "", BIND | REC)


def lock(root: str) -> None:
    """Everything shown is for reading only, and so is every mount below it."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), line.split()[4]) for line in lines]
    for point in points:
        if point.startswith(root + "/"):
            flags = os.statvfs(point).f_flag & KEPT
            nodev = 0 if point.startswith(f"{root}/dev/") else NODEV
            mount("none", point, "", REMOUNT | BIND | RDONLY | NOSUID | nodev | flags)


def move_into(root: str) -> None:
    """Make `root` the root and forget the old one."""
    machine = platform.machine()
    if machine not in PIVOT_ROOT:
        raise OSError(f"pivot_root: its number on {machine} is not known here")
    os.chdir(root)
    check(libc.syscall(PIVOT_ROOT[machine], b".", b"."), "pivot_root")
    check(libc.umount2(b".", DETACH), "umount the old root")


def become(spec: dict[str, Any], words: list[str]) -> None:
    """Give up every right and turn into the program; it dies with the process that started it."""
    os.setsid()
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(spec["uid"], spec["uid"], spec["uid"])
        os.setresuid(spec["uid"], spec["uid"], spec["uid"])
    check(libc.prctl(PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    check(libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    os.chdir(spec["scratch"])
    os.execve(words[0], words, spec["env"])


def main(argv: list[str]) -> int:
    spec, words = json.loads(argv[0]), argv[2:]
    os.umask(0o022)  # the new root's folders are made by root, for another user
    lifeline = int(os.environ.get("LABKIT_LIFELINE", "-1").partition(":")[0])
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # until there is a child to end
    try:
        enter(spec["uid"])
        process = os.fork()
        if process == 0:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
            if lifeline >= 0:
                os.close(lifeline)
            build_root(spec["root"], spec)
            move_into(spec["root"])
            become(spec, words)
    except OSError as error:
        print(f"namespaces: {error}", file=sys.stderr, flush=True)
        os._exit(REFUSED)
    for stream in (0, 1, 2):
        os.close(stream)
    signal.signal(signal.SIGTERM, lambda *_: os.kill(process, signal.SIGKILL))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    if lifeline >= 0:
        hear_of_the_grader(lifeline)
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status) % 256


def hear_of_the_grader(lifeline: int) -> None:
    """Be sent SIGTERM when the other end closes, which the grader holds as long as it lives. (Who
    has left the namespace of processes may start no thread that waits for it.)"""
    fcntl.fcntl(lifeline, SETSIG, signal.SIGTERM)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_NONBLOCK | fcntl.FASYNC)
    try:
        if os.read(lifeline, 1) == b"":  # it had gone before this
            os.kill(os.getpid(), signal.SIGTERM)
    except BlockingIOError:  # it lives: there is nothing to read
        return


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))
