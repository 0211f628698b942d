"""Python children that start in milliseconds: forks of a process that has imported what is big.

To measure a suite, hundreds of pytest processes run, each with children of its own, and each would
spend seconds on importing torch. Between `with warm.children():` and its end, whatever
`labkit.inside.child.spawn` starts is forked from one server instead, and so is what those children
start. The server imports packages of others only: the engine, the overlay and labkit's own modules
are loaded by each child anew, under its own environment.

For trusted code alone: grades start real processes, whose isolation needs an `exec`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit.inside import child

PACKAGES = ("numpy", "torch", "pytest", "hypothesis.stateful", "libcst.metadata", "rich", "typer")
"""Hypothesis reads failing tests with libcst, where that is installed."""
OURS = ("labkit", "mini_vllm", "sitecustomize")
FLAGS = ("-I", "-S", "-B")
_address = ""


@contextlib.contextmanager
def children() -> Iterator[None]:
    """Fork Python children from a warm server, on systems that can."""
    if not hasattr(os, "fork") or not hasattr(socket, "send_fds"):
        yield
        return
    usual = child.spawn
    with tempfile.TemporaryDirectory(prefix="labkit-") as folder:
        address = str(Path(folder, "warm"))
        server = subprocess.Popen(
            [sys.executable, "-m", "labkit.process.warm", address],
            env=os.environ | {"OMP_NUM_THREADS": "1"},  # a fork has no other threads
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert server.stdout and server.stdin
        try:
            if server.stdout.readline() != "ready\n":
                raise RuntimeError("the warm server did not start: its errors are above")
            use(address)
            yield
        finally:
            child.spawn = usual
            server.stdin.close()  # it ends when no process can ask any more
            server.wait()
            server.stdout.close()


def use(address: str) -> None:
    """From now on, children of this process are forked by the server at `address`."""
    global _address
    _address, child.spawn = address, spawn


def spawn(
    words: Sequence[str], env: Mapping[str, str], cwd: Path | None = None, uid: int | None = None
) -> subprocess.Popen[bytes]:
    """As `labkit.inside.child.spawn`, for `python [-I -S -B] -m module …` and `python … -c code`.

    Raises:
        ValueError: another program, or another user, which a fork cannot become.
    """
    if os.path.realpath(words[0]) != os.path.realpath(sys.executable) or uid is not None:
        raise ValueError(f"{words[0]} as user {uid}: only this Python can be forked, as this user")
    return Forked(words[1:], env, cwd)  # type: ignore[return-value]


class Forked:
    """What `labkit` uses of `subprocess.Popen`, for a process of the server."""

    def __init__(self, words: Sequence[str], env: Mapping[str, str], cwd: Path | None) -> None:
        pipes = [os.pipe() for _ in range(3)]
        theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
        self._code: int | None = None
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(_address)
        socket.send_fds(self._socket, [b"."], theirs)
        request = {"words": list(words), "env": dict(env), "cwd": str(cwd or os.getcwd())}
        self._answers = self._socket.makefile("rw")
        self._answers.write(json.dumps(request) + "\n")
        self._answers.flush()
        self.pid = int(self._answers.readline())
        for end in theirs:
            os.close(end)
        self.stdin = os.fdopen(pipes[0][1], "wb")
        self.stdout, self.stderr = (os.fdopen(pipe[0], "rb") for pipe in pipes[1:])

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """
        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        if self._code is None:
            if not select.select([self._socket], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a forked child", timeout or 0)
            self._code = int(self._answers.readline() or -signal.SIGKILL)
            self._answers.close()
            self._socket.close()
        return self._code

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            # It may have ended since, with its exit code still on the way.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


# ---------------------------------------------------------------- in the server and its children
def serve(address: str) -> None:
    """Fork a child for each connection, until stdin ends."""
    for name in PACKAGES:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        print("ready", flush=True)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the keepers are not waited for
        stdin_or_listener: list[Any] = [0, listener]
        while 0 not in select.select(stdin_or_listener, [], [])[0]:
            connection, _ = listener.accept()
            with connection:
                if not os.fork():
                    listener.close()
                    _keep(connection, address)


def _keep(connection: socket.socket, address: str) -> None:
    """Fork what was asked for, wait for it, and tell its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, fds, _, _ = socket.recv_fds(connection, 1, 3)
    stream = connection.makefile("r")
    request = json.loads(stream.readline())
    pid = os.fork()
    if not pid:
        _become(fds, address, **request)
    for fd in fds:
        os.close(fd)
    with contextlib.suppress(OSError):  # the child may have done so, or may have ended
        os.setpgid(pid, pid)
    try:
        connection.sendall(f"{pid}\n".encode())
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        connection.sendall(f"{code}\n".encode())
    finally:  # whatever happens, the server's loop is not for this process
        os._exit(0)


def _become(fds: list[int], address: str, words: list[str], env: dict[str, str], cwd: str) -> None:
    """Be the interpreter that `words` and `env` describe, and never return."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
    os.closerange(3, max(fds) + 1)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    code: object = 0
    try:
        _run(address, words)
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    # What an interpreter does at its end, and multiprocessing in its forks: idle threads of pools
    # are told to go, and all that are no daemons are waited for.
    threading._shutdown()  # type: ignore[attr-defined]
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _run(address: str, words: list[str]) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
        del sys.modules[name]
    way, program, *arguments = [word for word in words if word not in FLAGS]
    sys.argv, sys.dont_write_bytecode = [way, *arguments], True
    if "-I" not in words:
        paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[:0] = [os.getcwd(), *filter(None, paths)]
        importlib.import_module("sitecustomize")  # the limits and the overlay
        importlib.import_module("labkit.process.warm").use(address)
    if way == "-m":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    serve(sys.argv[1])
