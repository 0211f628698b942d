"""From what was named on the command line to runs: read a recording, or replay a trace.

============================================  ====================================================
what is given                                 what it gives
============================================  ====================================================
step lines (`--timeline`, `trace run`)        that recording
a trace (config and events)                   a replay in a child process, by `labkit trace run`
`tests/conformance/golden/PROFILE.jsonl.xz`   vLLM's recorded steps of one trace, chosen by seed
`tests/conformance/differences/NAME.json`     both recorded sides: mini_vllm's and vLLM's
============================================  ====================================================
"""

from __future__ import annotations

import json
import lzma
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from labkit.course.remedies import remedy
from labkit.course.root import ROOT
from labkit.inside.timeouts import Patience, until_ended
from labkit.inspector.recording import RecordingError, Run, check_line, read_lines
from labkit.trace.format import Add, Trace, TraceError, config_dict, parse_trace
from labkit.trace.generate import prompt_length
from mini_vllm.json_files import parse_json

REPLAY_SECONDS = 150
IMPLS = ("reference", "labs", "vllm")


@dataclass(frozen=True)
class Replay:
    """How a trace is replayed: the words for `labkit trace run`."""

    impl: str = "reference"
    scheduler: str | None = None
    labs: str = "02,03"

    @property
    def name(self) -> str:
        return self.scheduler or self.impl

    def words(self) -> list[str]:
        words = ["--impl", self.impl]
        words += ["--scheduler", self.scheduler] if self.scheduler else []
        return words + (["--labs", self.labs] if self.impl == "labs" else [])


@dataclass(frozen=True)
class Source:
    """One opened file: its runs (two for a recorded difference), and its trace if it has one."""

    runs: list[Run]
    trace: Trace | None = None
    path: Path | None = None


def load(
    path: Path,
    against: str | None = None,
    replay: Replay = Replay(),
    described_by: Path | None = None,
    seed: int | None = None,
) -> list[Run]:
    """The run that a file holds, and beside it another one if `against` names it.

    Args:
        path: see the table above.
        against: another such file, or, if `path` has a trace, whose replay of that trace:
            reference, labs, vllm, or a scheduler (`labkit trace run --scheduler`).
        replay: who replays `path` if it is a trace.
        described_by: the trace of a recording that does not say its limits itself.
        seed: which trace of a golden file.

    Raises:
        RecordingError: a file is missing or wrong, or a replay fails in its first step.
    """
    description = _description(described_by)
    first = _open(path, replay, seed)
    runs = [_describe(run, description) for run in first.runs]
    if against is None:
        return runs
    return [runs[0], _describe(_other(first, against, replay, seed), description)]


def _other(first: Source, against: str, replay: Replay, seed: int | None) -> Run:
    """The run to lay beside the first one."""
    if against not in IMPLS and Path(against).exists() and not against.endswith(".py"):
        run = _open(Path(against), replay, seed).runs[0]
        return _describe(run, first.trace, "the trace beside it") if first.trace else run
    if first.trace is None or first.path is None:
        raise RecordingError(
            f"--against {against}: there is no such file, and {first.path or 'the recording'} "
            "holds no trace that could be replayed; name a recording"
        )
    if against in IMPLS:
        return run_trace(first.trace, replace(replay, impl=against, scheduler=None))
    return run_trace(first.trace, replace(replay, impl="reference", scheduler=against))


def _open(path: Path, replay: Replay, seed: int | None) -> Source:
    if path.suffix == ".xz":
        return _open_golden(path, seed)
    text = _read(path)
    data = _whole_document(path, text)
    if data is None:
        return Source([recorded(path.name, read_lines(path, text))], None, path)
    if {"trace", "mini_vllm", "vllm"} <= data.keys():
        return _open_difference(path, data)
    trace = _trace(data, path)
    return Source([run_trace(trace, replay)], trace, path)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RecordingError(f"{path}: there is no such file; docs/traces holds some") from None
    except OSError as error:
        raise RecordingError(f"{path}: cannot be read: {remedy(error)}") from None
    except UnicodeDecodeError:
        raise RecordingError(f"{path}: cannot be read as text, as traces are") from None


def _whole_document(path: Path, text: str) -> dict[str, Any] | None:
    """The file as one JSON object; None if it is one of step lines."""
    try:
        data = parse_json(text)
    except json.JSONDecodeError as error:
        if _begins_with_a_step(text):
            return None
        place = f"{path}, line {error.lineno}, column {error.colno}"
        said = f"{place}: this is not JSON: {error.msg}"
        raise RecordingError(f"{said}; docs/traces holds files that are") from None
    if not isinstance(data, dict):
        raise RecordingError(f"{path}: this is neither a trace nor a recording of steps")
    return data if data.keys() & {"config", "events", "trace"} and "step" not in data else None


def _begins_with_a_step(text: str) -> bool:
    """Whether the first line is an object of its own, or there is none at all."""
    first = next((raw for raw in text.split("\n") if raw.strip()), "{}")
    try:
        return isinstance(parse_json(first), dict)
    except json.JSONDecodeError:
        return first.lstrip().startswith('{"step"')


def _trace(data: Any, path: Path) -> Trace:
    try:
        return parse_trace(data, str(path))
    except TraceError as error:
        raise RecordingError(str(error)) from None


def recorded(name: str, lines: list[Any]) -> Run:
    """A recording with what it says about itself."""
    prompts: dict[str, int] = {}
    for line in lines:
        prompts |= line.get("added", {})
    return Run(name, lines, lines[0].get("config", {}), prompts)


def _open_golden(path: Path, seed: int | None) -> Source:
    """vLLM's own steps of one recorded trace."""
    try:
        text = lzma.decompress(path.read_bytes()).decode("utf-8")
        records = [parse_json(line) for line in text.splitlines()]
        found = {record["seed"]: record for record in records[1:]}
    except FileNotFoundError:
        raise RecordingError(f"{path}: there is no such file") from None
    except (OSError, lzma.LZMAError, ValueError, KeyError, TypeError) as error:
        raise RecordingError(f"{path}: this is no file of golden traces: {error}") from None
    chosen = seed if seed is not None else min(found, default=0)
    if chosen not in found:
        seeds = ", ".join(map(str, sorted(found)))
        raise RecordingError(f"{path}: there is no seed {chosen}; it has {seeds}")
    trace = _trace(found[chosen]["trace"], path)
    name = f"vLLM, golden {path.name.split('.')[0]}-{chosen}"
    return Source([of_trace(name, found[chosen]["lines"], trace)], trace, path)


def _open_difference(path: Path, data: dict[str, Any]) -> Source:
    """Both sides of a deliberate difference."""
    trace = _trace(data["trace"], path)
    sides = [
        replace(of_trace(name, data[key]["lines"], trace), error=data[key].get("error"))
        for key, name in (("mini_vllm", "mini_vllm"), ("vllm", "vLLM, recorded"))
    ]
    return Source(sides, trace, path)


def of_trace(name: str, lines: list[Any], trace: Trace, error: str | None = None) -> Run:
    """Steps of a replay, checked, with the trace's limits and prompt lengths; `error` ended it."""
    for step, line in enumerate(lines):
        check_line(line, step, f"{name}, step {step}")
    return _describe(Run(name, lines, error=error), trace)


def _description(path: Path | None) -> Trace | None:
    if path is None:
        return None
    data = _whole_document(path, _read(path))
    if data is None:
        raise RecordingError(f"{path}: this is a recording; --config names a trace")
    return _trace(data, path)


def _describe(run: Run, trace: Trace | None, source: str | None = None) -> Run:
    """Fill in limits and prompt lengths from a trace, where the run does not say them itself."""
    if trace is None or run.config:
        return run
    prompts = {e.id: prompt_length(e) for e in trace.events if isinstance(e, Add)}
    note = (f"Limits and prompt lengths are those of {source}.",) if source else ()
    return replace(
        run, config=config_dict(trace.config), prompt_tokens=prompts, notes=run.notes + note
    )


# ------------------------------------------------------------------ replaying


def run_trace(trace: Trace, replay: Replay) -> Run:
    """Replay a trace in a child process; what it prints before an error is kept.

    Raises:
        RecordingError: there is not even a first step.
    """
    with tempfile.TemporaryDirectory(prefix="inspect-") as folder:
        path = Path(folder, "trace.json")
        path.write_text(json.dumps(trace.to_dict()), encoding="utf-8")
        lines, error = _child(path, replay)
    if not lines:
        raise RecordingError(
            error or f"{replay.name}: the trace has no step; add one to its events"
        )
    run = of_trace(replay.name, lines, trace)
    config = dict(run.config) | ({"scheduler": replay.scheduler} if replay.scheduler else {})
    return replace(run, config=config, error=error)


def _child(path: Path, replay: Replay) -> tuple[list[Any], str | None]:
    """The step lines that `labkit trace run` prints, and why it ended if it failed."""
    command = [sys.executable, "-m", "labkit", "trace", "run", str(path), *replay.words()]
    env = os.environ | {"PYTHONUNBUFFERED": "1"}  # keep the lines before a hang
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [env.get("PYTHONPATH")])])
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(command, env=env, stdout=output, stderr=errors)
        try:
            until_ended(child.wait, patience := Patience(REPLAY_SECONDS, child.pid))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        output.seek(0)
        errors.seek(0)
        lines = [json.loads(text) for text in output if text.endswith("\n")]
        message = errors.read().strip()
    if child.returncode < 0 and patience.left <= 0:
        return lines, f"{replay.name}: no end within {patience.told()}; it was stopped"
    if child.returncode:
        return lines, message or f"{replay.name}: the child exited with {child.returncode}"
    return lines, None
