"""Child processes with limits: time, memory, processes, file size and output. A hang comes back
with the stack it hung in.

Nothing here trusts the child to behave, and nothing protects a secret from it: isolation is added
by the grader (`labkit.sandbox.isolation`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import json
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from labkit.inside.timeouts import WALL_TIMES, Patience, until_ended

LIMITS = "LABKIT_LIMITS"
LIFELINE = "LABKIT_LIFELINE"
F_SETSIG = 10
"""Of Linux; Python's `fcntl` has no name for it."""
OUTPUT_BYTES = 256 * 1024
runs_here: Callable[[Sequence[str], Mapping[str, str], int], tuple[int, str, str]] | None = None
"""Where there are no processes, as in a browser's tab: what runs a program inside this one for
`run` (`labkit.process.here`)."""
STACK_SECONDS = 5.0
"""For a process that is asked where it hangs, and has only to write it."""


@dataclass(frozen=True)
class Limits:
    """What one child may use.

    Attributes:
        seconds: that the process may compute or sleep (`labkit.inside.timeouts.Patience`).
        memory_mb: private memory; 0 = no limit. On Linux this is RLIMIT_DATA, which leaves out
            mapped libraries and the address space that CUDA reserves; elsewhere it is RLIMIT_AS.
        file_mb: size of any file it writes.
        mapped_mb: address space (RLIMIT_AS), which counts shared memory too; 0 = no limit. Never
            set it for a process that uses CUDA.
        cpu_seconds: CPU time of each process; 0 = no limit.
        tasks: processes and threads that its user may have, those of other programs included
            (RLIMIT_NPROC, which does not bind root); 0 = no limit.
        files: how many may be open (RLIMIT_NOFILE): what waits in sockets and pipes is counted
            for no process; 0 = no limit.
        alone: it may start no other process (`labkit.inside.one_process`).
        wall_times: so many times `seconds` may pass by the clock.
    """

    seconds: float = 60.0
    memory_mb: int = 4096
    file_mb: int = 64
    mapped_mb: int = 0
    cpu_seconds: int = 0
    tasks: int = 0
    files: int = 0
    alone: bool = False
    wall_times: float = WALL_TIMES


@dataclass(frozen=True)
class Finished:
    """How a child ended: exit code (None if it was killed for time), its output, cut to 256 KiB,
    seconds by the clock, and in words those after which it was killed."""

    code: int | None
    stdout: str
    stderr: str
    seconds: float
    after: str = ""

    @property
    def timed_out(self) -> bool:
        return self.code is None


def prepare_from_environment() -> None:
    """In the child: apply the limits, and let SIGUSR1 print every thread's stack to stderr and then
    end the process, so that no time of printing has to be guessed."""
    limits = os.environ.get(LIMITS)
    if limits is None:
        return
    global _own_stderr
    faulthandler.enable()
    die_with_the_parent()
    # A duplicate: pytest puts a file of its own behind descriptor 2 while a test runs.
    _own_stderr = os.dup(2)
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, file=_own_stderr, chain=True)
    try:
        import resource
    except ImportError:  # Windows has no such limits
        return
    wanted = Limits(**json.loads(limits))
    memory = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
    for which, value in (
        (memory, wanted.memory_mb << 20),
        (resource.RLIMIT_AS, wanted.mapped_mb << 20),
        (resource.RLIMIT_CPU, wanted.cpu_seconds),
        (resource.RLIMIT_NPROC, wanted.tasks),
        (resource.RLIMIT_NOFILE, wanted.files),
    ):
        if value:
            _lower(which, value)
    _lower(resource.RLIMIT_FSIZE, wanted.file_mb << 20)
    _lower(resource.RLIMIT_CORE, 0)
    if wanted.alone:
        from labkit.inside.one_process import stay_alone

        stay_alone()


_own_stderr = 2


def say_where_it_stands() -> None:
    """In the child: print every thread's stack to stderr, as a parent that asks gets it."""
    faulthandler.dump_traceback(_own_stderr)


def die_with_the_parent() -> None:
    """In the child, on Linux: if the parent is killed, its end of the lifeline closes, and the
    kernel ends this process, in whatever loop it is."""
    number, _, inode = os.environ.pop(LIFELINE, "").partition(":")
    if sys.platform != "linux" or not number:
        return
    import fcntl

    try:
        if os.fstat(int(number)).st_ino != int(inode):
            return  # the number is another file's by now
        fcntl.fcntl(int(number), F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(int(number), fcntl.F_SETOWN, os.getpid())
        flags = fcntl.fcntl(int(number), fcntl.F_GETFL)
        fcntl.fcntl(int(number), fcntl.F_SETFL, flags | os.O_NONBLOCK | fcntl.FASYNC)
        if os.read(int(number), 1) == b"":  # the parent was gone before this
            os.kill(os.getpid(), signal.SIGKILL)
    except OSError:  # nothing to read while the parent lives; or the file is closed
        return


def be_killed_first() -> None:
    """If the machine runs out of memory, the kernel ends this process and not the grader."""
    try:
        Path("/proc/self/oom_score_adj").write_text("1000")
    except OSError:  # not Linux, or no /proc here
        return


def _lower(which: int, value: int) -> None:
    import resource

    hard = resource.getrlimit(which)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    try:
        resource.setrlimit(which, (value, value))
    except (ValueError, OSError):  # some systems refuse a limit
        return


def start(
    command: Sequence[str], env: Mapping[str, str], limits: Limits, cwd: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start a Python child in its own process group, with pipes on all three streams."""
    return spawn([sys.executable, *command], dict(env) | variable(limits), cwd)


def variable(limits: Limits) -> dict[str, str]:
    """How limits travel to a child, which applies them to itself before it runs anything else."""
    return {LIMITS: json.dumps(dataclasses.asdict(limits))}


def spawn(
    words: Sequence[str], env: Mapping[str, str], cwd: Path | None = None, uid: int | None = None
) -> subprocess.Popen[bytes]:
    """Any program in its own process group, with pipes; as another user if `uid` is given."""
    identity: dict[str, Any] = {} if uid is None else {"user": uid, "group": uid}
    if uid is not None:
        identity["extra_groups"] = []
    identity |= dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    if sys.platform != "linux":
        return subprocess.Popen(words, env=dict(env), cwd=cwd, start_new_session=True, **identity)
    theirs, ours = os.pipe()
    env = dict(env) | {LIFELINE: f"{theirs}:{os.fstat(theirs).st_ino}"}
    try:
        process = subprocess.Popen(
            words, env=env, cwd=cwd, start_new_session=True, pass_fds=[theirs], **identity
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    weakref.finalize(process, os.close, ours)
    return process


class Tail:
    """Reads a stream in a thread so that the child never blocks, and keeps its first 256 KiB."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._data = bytearray()
        self._stream = stream
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while chunk := self._stream.read1(65536):  # type: ignore[attr-defined]
            self._data += chunk[: OUTPUT_BYTES - len(self._data)]

    def text(self, wait: float = 2.0) -> str:
        self._come_to_its_end(wait)
        return bytes(self._data).decode("utf-8", "replace")

    def close(self, wait: float = 1.0) -> None:
        """Close the stream once it has ended. A grandchild that got away may hold its other end
        open; then it is left to the thread, for closing it here would wait for that process."""
        self._come_to_its_end(wait)
        if not self._thread.is_alive():
            self._stream.close()

    def _come_to_its_end(self, wait: float) -> None:
        patience = Patience(wait)
        while self._thread.is_alive() and patience.left > 0:
            with patience.turn() as seconds:
                self._thread.join(seconds)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask where it hangs, then kill it with all of its children."""
    if process.poll() is None and hasattr(signal, "SIGUSR1"):
        process.send_signal(signal.SIGUSR1)
        with contextlib.suppress(subprocess.TimeoutExpired):
            until_ended(process.wait, Patience(STACK_SECONDS))
    kill_group(process)
    process.wait()


def kill_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()


_running: set[subprocess.Popen[bytes]] = set()
"""What `run` waits for, in all threads."""


def stop_all() -> None:
    """End all that `run` waits for: an interrupt reaches the main thread alone."""
    for process in list(_running):
        kill_group(process)


def run(
    command: Sequence[str], env: Mapping[str, str], limits: Limits, cwd: Path | None = None
) -> Finished:
    """Run `python command…` to its end or to its limit."""
    begin = time.monotonic()
    if runs_here:
        return Finished(*runs_here(command, env, OUTPUT_BYTES), time.monotonic() - begin)
    process = start(command, env, limits, cwd)
    assert process.stdin and process.stdout and process.stderr
    process.stdin.close()
    out, err = Tail(process.stdout), Tail(process.stderr)
    patience = Patience(limits.seconds, process.pid, limits.wall_times)
    _running.add(process)
    try:
        code: int | None = until_ended(process.wait, patience)
        kill_group(process)
    except subprocess.TimeoutExpired:
        code = None
        stop(process)
    except BaseException:
        stop(process)
        raise
    finally:
        _running.discard(process)
    after = patience.told() if code is None else ""
    return Finished(code, out.text(), err.text(), time.monotonic() - begin, after)
