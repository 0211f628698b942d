"""One protocol for all code that is not trusted or must not meet other code: a child process.

The parent sends one JSON line, {"id", "scenario", "args"}, where the id is a new secret of this
request and a scenario is "module:function";
the child answers {"id", "item"} any number of times and then {"id", "end"} or {"id", "error"}. Only
plain builtins and arrays of numbers come back (`labkit.inside.plain`); the clock, the seeds and the
comparison stay in the parent. A child that hangs is asked where, and killed; the next request
starts a fresh one.

Whatever the child writes, the parent holds a bounded piece of it in memory; whatever it does not
read or does not close, the parent does not wait for.
"""

from __future__ import annotations

import contextlib
import json
import queue
import secrets
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Protocol

from labkit.inside import child, plain
from labkit.inside.program import Program
from labkit.inside.timeouts import Patience
from labkit.process import overlay

__all__ = ["Program", "Worker", "WorkerError"]

PROGRAM = "labkit.inside.basic:run_program"
TRACE = "labkit.trace.scenario:trace"
"""The two scenarios that hidden tests ask for."""
MAX_LINE = 16 << 20
MAX_ANSWER = 64 << 20
WAITING_LINES = 4


class WorkerError(Exception):
    """The child did not give an answer.

    Attributes:
        kind: "error" (the scenario raised), "hang", "died" or "garbage".
        detail: for "error" its type, message and frames; else what is known as text.
    """

    def __init__(self, kind: str, detail: Any, name: str) -> None:
        self.kind, self.detail = kind, detail
        text = detail
        if kind == "error":
            text = f"{detail['type']}: {detail['message']}"
            if detail["frames"]:
                file, line, function = detail["frames"][-1]
                text += f" (in {function}, {file}:{line})"
        super().__init__(f"{name}: {kind}: {text}")


class Launcher(Protocol):
    """Starts the child's side of the protocol, and ends it."""

    def start(self, limits: child.Limits) -> subprocess.Popen[bytes]:
        """A process that runs `labkit.inside.worker_child` on its stdin and stdout."""

    def ask(self, process: subprocess.Popen[bytes]) -> None:
        """Let a process that hangs write to stderr where it stands, and end it."""

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Kill the process and all of its children."""


class Overlaid:
    """The launcher of trusted and of the learner's own runs: this interpreter, with some modules
    replaced by an overlay. It limits, but it hides nothing."""

    def __init__(self, root: Path, mapping: Mapping[str, str]) -> None:
        self.root, self.mapping = root, dict(mapping)

    def start(self, limits: child.Limits) -> subprocess.Popen[bytes]:
        env = overlay.environment(self.root, self.mapping)
        return child.start(["-m", "labkit.inside.worker_child"], env, limits, self.root)

    def ask(self, process: subprocess.Popen[bytes]) -> None:
        child.stop(process)

    def end(self, process: subprocess.Popen[bytes]) -> None:
        child.kill_group(process)

    def answers(
        self, scenario: str, args: dict[str, Any], limits: child.Limits
    ) -> Iterator[dict[str, Any]]:
        """All messages of one request, from a run to its end: where there are no processes."""
        with tempfile.TemporaryDirectory() as place:
            asked, told = Path(place) / "asked", Path(place) / "told"
            asked.write_text(json.dumps({"scenario": scenario, "args": plain.encode(args)}))
            words = ["-m", "labkit.inside.answers", str(asked), str(told)]
            done = child.run(words, overlay.environment(self.root, self.mapping), limits)
            if not told.exists():
                raise WorkerError("died", done.stderr[-3000:], "worker")
            for line in told.read_text(encoding="utf-8").splitlines():
                yield json.loads(line)


class Worker:
    """A child process that runs scenarios with some modules replaced.

    Args:
        root: the checkout whose engine it imports.
        mapping: module -> file, the overlay; {} = the reference.
        limits: for the child; `seconds` is the time for each answer, not for its life, of which
            what it computes or sleeps counts (`labkit.inside.timeouts.Patience`).
        name: how messages call it.
        launcher: how it is started; default: with an overlay in this interpreter.
        start_seconds: added to the time of the first answer, which imports everything.

    Attributes:
        patience: with the answer that came last, or is waited for.
    """

    def __init__(
        self,
        root: Path,
        mapping: Mapping[str, str],
        limits: child.Limits | None = None,
        name: str = "worker",
        launcher: Launcher | None = None,
        start_seconds: float = 0.0,
    ) -> None:
        self.name = name
        self.limits = limits or child.Limits(seconds=20)
        self.launcher: Launcher = launcher or Overlaid(root, mapping)
        self.start_seconds = start_seconds
        self._process: Any = None
        self._spare: tuple[Any, queue.SimpleQueue[bytes], str] | None = None
        self._unread: set[str] = set()
        self.patience = Patience(0.0)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End all children."""
        self.close()
        self._drop_the_spare()

    def prepare(self, scenario: str, **args: Any) -> None:
        """Start the next child now, and ask it something whose answer is not read, such as to
        import large packages: it computes while another one, or the parent, does."""
        if self._spare is None:
            process = self.launcher.start(self.limits)
            outbox = _outbox_of(process)
            self._spare = process, outbox, _send(outbox, scenario, args)

    def _start(self) -> None:
        if self._spare is not None and self._spare[0].poll() is not None:
            self._drop_the_spare()
        if self._spare is None:
            self._process = self.launcher.start(self.limits)
            self._outbox, self._unread = _outbox_of(self._process), set()
        else:
            self._process, self._outbox, unread = self._spare
            self._spare, self._unread = None, {unread}
        self._stderr = child.Tail(self._process.stderr)
        self._lines: queue.Queue[bytes] = queue.Queue(WAITING_LINES)
        self._reader = threading.Thread(
            target=_pump, args=(self._process.stdout, self._lines), daemon=True
        )
        self._reader.start()
        self._extra = self.start_seconds

    def _drop_the_spare(self) -> None:
        if self._spare is not None:
            (process, outbox, _), self._spare = self._spare, None
            self.launcher.end(process)
            process.wait()
            outbox.put(b"")
            process.stdout.close()
            process.stderr.close()

    def close(self) -> None:
        """End the child that answers, and all of its children; a prepared one is not ended."""
        if self._process is None:
            return
        process, self._process = self._process, None
        self.launcher.end(process)
        process.wait()
        self._outbox.put(b"")
        _drain(self._reader, self._lines)
        self._stderr.close()

    def call(self, scenario: str, **args: Any) -> Any:
        """Run a scenario, "module:function", and return its result, or the list of what it yields.

        Raises:
            WorkerError: it raised, hung, died, or answered with garbage.
        """
        items: list[Any] = []
        for kind, value in self._exchange(scenario, args):
            if kind == "end":
                return items if value is None and items else value
            items.append(value)
        raise AssertionError("an exchange ends with its end or an error")

    def stream(self, scenario: str, **args: Any) -> Iterator[Any]:
        """Run a scenario that yields; gives each value as it comes.

        Raises:
            WorkerError: as `call`.
        """
        for kind, value in self._exchange(scenario, args):
            if kind == "item":
                yield value

    def run(self, program: Program) -> list[Any]:
        """Do what a program wrote down; its observations.

        Raises:
            WorkerError: as `call`.
        """
        seen = self.call(PROGRAM, steps=program.steps)
        if type(seen) is not list:
            raise WorkerError("garbage", f"{type(seen).__name__} for a list", self.name)
        return program.judge(seen)

    def trace(self, trace: dict[str, Any], scheduler: str = "") -> list[dict[str, Any]]:
        """Replay a trace; one line for each step.

        Raises:
            WorkerError: as `call`.
        """
        lines = self.call(TRACE, trace=trace, scheduler=scheduler) or []
        if type(lines) is not list or not all(type(line) is dict for line in lines):
            raise WorkerError("garbage", "no list of lines", self.name)
        return lines

    def _exchange(self, scenario: str, args: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        if child.runs_here and isinstance(self.launcher, Overlaid):
            for message in self.launcher.answers(scenario, args, self.limits):
                if "error" in message:
                    raise WorkerError("error", message["error"], self.name)
                kind = "end" if "end" in message else "item"
                yield kind, plain.decode(message[kind])
            return
        if self._process is None:
            self._start()
        number = _send(self._outbox, scenario, args)
        self._left = MAX_ANSWER
        seconds = self.limits.seconds + self._extra
        self.patience = Patience(seconds, self._process.pid, self.limits.wall_times)
        finished = False
        try:
            while True:
                message = self._receive(number)
                if "error" in message:
                    finished = True
                    raise WorkerError("error", message["error"], self.name)
                kind = "end" if "end" in message else "item"
                value = plain.decode(message.get(kind))
                finished = kind == "end"
                yield kind, value
                if finished:
                    return
        except (plain.PlainError, RecursionError) as error:
            raise WorkerError("garbage", str(error), self.name) from None
        finally:
            self._extra = 0.0
            if not finished:
                self.close()

    def _receive(self, number: str) -> dict[str, Any]:
        raw = self._next_line()
        self._left -= len(raw)
        if len(raw) >= MAX_LINE or self._left < 0:
            raise WorkerError("garbage", f"more than {MAX_ANSWER >> 20} MiB", self.name)
        try:
            message = json.loads(raw)
        except (ValueError, RecursionError):
            message = None
        if isinstance(message, dict) and message.get("id") in self._unread:
            if "item" not in message:
                self._unread.discard(message["id"])
            return self._receive(number)
        if not isinstance(message, dict) or message.get("id") != number:
            raise WorkerError("garbage", raw[:200].decode("utf-8", "replace"), self.name)
        error = message.get("error")
        if error is not None and not _is_error(error):
            raise WorkerError("garbage", "an error without its parts", self.name)
        return message

    def _next_line(self) -> bytes:
        """What the child wrote next. Its time is that of a whole answer, so that one in pieces,
        each of them in time, ends as well.

        Raises:
            WorkerError: nothing in time, or it has ended.
        """
        raw = None
        while raw is None and self.patience.left > 0:
            with self.patience.turn() as seconds, contextlib.suppress(queue.Empty):
                raw = self._lines.get(timeout=seconds)
        if raw is None:
            self.launcher.ask(self._process)
            stack = self._stderr.text()[-3000:]
            text = f"no answer after {self.patience.told()}; it stood here:\n{stack}"
            raise WorkerError("hang", text, self.name)
        if raw:
            return raw
        self.launcher.end(self._process)  # it may have closed its end and live on
        code = self._process.wait()
        raise WorkerError("died", f"exit code {code}\n{self._stderr.text()[-3000:]}", self.name)


def _is_error(error: Any) -> bool:
    return (
        isinstance(error, dict)
        and all(isinstance(error.get(key), str) for key in ("type", "message"))
        and isinstance(error.get("frames"), list)
        and all(isinstance(f, list) and len(f) == 3 for f in error["frames"])
    )


def _pump(stream: IO[bytes], lines: queue.Queue[bytes]) -> None:
    """Read answers in a thread; b"" says that the child has closed its end. A full queue stops the
    reading, and so the child."""
    while raw := stream.readline(MAX_LINE):
        lines.put(raw)
    lines.put(b"")
    stream.close()


def _outbox_of(process: subprocess.Popen[bytes]) -> queue.SimpleQueue[bytes]:
    """Where to put requests for a child; b"" ends it."""
    outbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_feed, args=(outbox, process.stdin), daemon=True).start()
    return outbox


def _send(outbox: queue.SimpleQueue[bytes], scenario: str, args: dict[str, Any]) -> str:
    """Ask, under a name that cannot be guessed, so that an answer written before is none."""
    number = secrets.token_hex(16)
    message = {"id": number, "scenario": scenario, "args": plain.encode(args)}
    outbox.put(json.dumps(message).encode() + b"\n")
    return number


def _feed(requests: queue.SimpleQueue[bytes], stream: IO[bytes]) -> None:
    """Write requests in a thread: a child that does not read must not stop the parent."""
    try:
        with stream:
            while raw := requests.get():
                stream.write(raw)
                stream.flush()
    except OSError:
        pass  # it died: the answer will say so


def _drain(reader: threading.Thread, lines: queue.Queue[bytes], seconds: float = 1.0) -> None:
    """Let the reader come to the end of what a dead child wrote. If a grandchild that got away
    holds the pipe open, the reader is left behind."""
    while reader.is_alive() and seconds > 0:
        try:
            lines.get(timeout=0.02)
        except queue.Empty:
            seconds -= 0.02
