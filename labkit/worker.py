"""One protocol for all code that is not trusted or must not meet other code: a child process.

The parent sends one JSON line, {"id", "scenario", "args"}; the child answers {"id", "item"} any
number of times and then {"id", "end"} or {"id", "error"}. Arrays travel in npz files beside it.
Only plain builtins come back (`labkit.plain`); the clock, the seeds and the comparison stay in the
parent. A child that hangs is asked where, and killed; the next request starts a fresh one.
"""

from __future__ import annotations

import json
import queue
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from labkit import child, overlay, plain
from labkit.program import Program

__all__ = ["Program", "Worker", "WorkerError"]

MAX_LINE = 32 << 20


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


class Worker:
    """A child process that runs scenarios with some modules replaced.

    Args:
        root: the checkout whose engine it imports.
        mapping: module -> file, the overlay; {} = the reference.
        limits: for the child; `seconds` is the time for each answer, not for its life.
        name: how messages call it.
    """

    def __init__(
        self,
        root: Path,
        mapping: Mapping[str, str],
        limits: child.Limits | None = None,
        name: str = "worker",
    ) -> None:
        self.root, self.mapping, self.name = root, dict(mapping), name
        self.limits = limits or child.Limits(seconds=20)
        self._process: Any = None
        self._count = 0

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        env = overlay.environment(self.root, self.mapping)
        words = ["-m", "labkit.worker_child", self._folder.name]
        self._process = child.start(words, env, self.limits, self.root)
        self._stderr = child.Tail(self._process.stderr)
        self._lines: queue.Queue[bytes] = queue.Queue()
        threading.Thread(
            target=_pump, args=(self._process.stdout, self._lines), daemon=True
        ).start()

    def close(self) -> None:
        """End the child and all of its children."""
        if self._process is None:
            return
        child.kill_group(self._process)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            stream.close()
        self._folder.cleanup()
        self._process = None

    def call(self, scenario: str, **args: Any) -> Any:
        """Run a scenario and return its result, or the list of what it yields.

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
        """Do what a program wrote down; its observations."""
        return list(self.call("program", steps=program.steps))

    def trace(self, trace: dict[str, Any], scheduler: str = "") -> list[dict[str, Any]]:
        """Replay a trace; one line for each step."""
        return list(self.call("trace", trace=trace, scheduler=scheduler) or [])

    def _exchange(self, scenario: str, args: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        if self._process is None:
            self._start()
        number = self._send(scenario, args)
        finished = False
        try:
            while True:
                message = self._receive(number)
                arrays = {}
                if "npz" in message:
                    file = Path(self._folder.name, Path(str(message["npz"])).name)
                    arrays = plain.load_arrays(file)
                    file.unlink()
                if "error" in message:
                    finished = True
                    raise WorkerError("error", message["error"], self.name)
                kind = "end" if "end" in message else "item"
                finished = kind == "end"
                yield kind, plain.decode(message.get(kind), arrays)
                if finished:
                    return
        except plain.PlainError as error:
            raise WorkerError("garbage", str(error), self.name) from None
        finally:
            if not finished:
                self.close()

    def _send(self, scenario: str, args: dict[str, Any]) -> int:
        self._count += 1
        arrays: dict[str, Any] = {}
        message = {"id": self._count, "scenario": scenario, "args": plain.encode(args, arrays)}
        if arrays:
            message["npz"] = f"request-{self._count}.npz"
            plain.save_arrays(Path(self._folder.name, message["npz"]), arrays)
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it died: the answer will say so
        return self._count

    def _receive(self, number: int) -> dict[str, Any]:
        try:
            raw = self._lines.get(timeout=self.limits.seconds)
        except queue.Empty:
            child.stop(self._process)
            stack = self._stderr.text()[-3000:]
            text = f"no answer after {self.limits.seconds:g} s; it stood here:\n{stack}"
            raise WorkerError("hang", text, self.name) from None
        if not raw:
            code = self._process.wait()
            text = f"exit code {code}\n{self._stderr.text()[-3000:]}"
            raise WorkerError("died", text, self.name)
        try:
            message = json.loads(raw)
        except ValueError:
            message = None
        if not isinstance(message, dict) or message.get("id") != number:
            raise WorkerError("garbage", raw[:200].decode("utf-8", "replace"), self.name)
        error = message.get("error")
        if error is not None and not _is_error(error):
            raise WorkerError("garbage", "an error without its parts", self.name)
        return message


def _is_error(error: Any) -> bool:
    return (
        isinstance(error, dict)
        and all(isinstance(error.get(key), str) for key in ("type", "message"))
        and isinstance(error.get("frames"), list)
        and all(isinstance(f, list) and len(f) == 3 for f in error["frames"])
    )


def _pump(stream: Any, lines: queue.Queue[bytes]) -> None:
    """Read answers in a thread; b"" says that the child has closed its end."""
    try:
        while raw := stream.readline(MAX_LINE):
            lines.put(raw)
    except ValueError:  # closed while reading
        pass
    lines.put(b"")
