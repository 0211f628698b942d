"""`python -m labkit trace run|diff|gen`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from labkit.course.root import ROOT
from labkit.inside.timeouts import Patience, until_ended
from labkit.trace.diff import first_difference, load_lines, render
from labkit.trace.format import Trace, TraceError, dump_line, dump_trace, load_trace
from labkit.trace.generate import generate as generate_trace
from labkit.trace.kinds import ALL_KINDS, NEWER_KINDS
from labkit.trace.oracle import Environment, Oracle, OracleError
from labkit.trace.runner import Line, run_reference

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Replay a trace of arrivals on a scheduler, and compare replays step by step.",
)


class Impl(StrEnum):
    """Whose scheduler replays."""

    REFERENCE = "reference"
    LABS = "labs"
    VLLM = "vllm"


LABS_SECONDS = 120
KINDS = (*ALL_KINDS, *NEWER_KINDS)
SCHEDULER_HELP = "another for --impl reference: vllm-v0, ... or path/to/file.py:Class"
LABS_HELP = "phases whose modules are yours with --impl labs, such as 02,03"


@app.command()
def run(
    file: Annotated[Path, typer.Argument(help="the trace")],
    impl: Annotated[Impl, typer.Option(help="whose scheduler")] = Impl.REFERENCE,
    scheduler: Annotated[str | None, typer.Option(help=SCHEDULER_HELP)] = None,
    labs: Annotated[str, typer.Option(help=LABS_HELP)] = "02,03",
) -> None:
    """Replay a trace and print one JSON line a step."""
    if scheduler and impl is not Impl.REFERENCE:
        _fail(f"--scheduler goes with --impl reference, not with --impl {impl}")
    try:
        for line in replay_with(impl, file, scheduler, labs):
            print(dump_line(line))
    except BrokenPipeError:  # `| head` has read enough
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (nothing is left to write)
    except (TraceError, OracleError, ValueError) as error:
        _fail(str(error))
    except Exception as error:
        sys.stdout.flush()
        _fail(f"the scheduler raised {type(error).__name__}: {error}")


@app.command()
def diff(
    left: Annotated[str, typer.Argument(help="a file of step lines, or reference, labs, vllm")],
    right: Annotated[str, typer.Argument(help="the same")],
    trace: Annotated[Path | None, typer.Argument(help="the trace, if a side is no file")] = None,
    scheduler: Annotated[str | None, typer.Option(help=SCHEDULER_HELP)] = None,
    labs: Annotated[str, typer.Option(help=LABS_HELP)] = "02,03",
) -> None:
    """Print the first step in which two replays differ; exit with 1 if there is one."""
    try:
        sides = [_side(name, trace, scheduler, labs) for name in (left, right)]
        found = first_difference(*sides)
    except (TraceError, OracleError, ValueError) as error:
        _fail(str(error))
    if found:
        print(render(found, left, right))
        raise typer.Exit(1)
    print(f"No difference: {len(sides[0])} steps.")


@app.command()
def gen(
    kind: Annotated[str, typer.Option("--kind", "--profile", help=", ".join(KINDS))] = "mixed",
    seed: Annotated[int, typer.Option(help="the same seed gives the same trace")] = 0,
    steps: Annotated[int, typer.Option(min=1, help="about how many steps")] = 100,
) -> None:
    """Print a random trace."""
    try:
        print(dump_trace(generate_trace(kind, seed, steps)), end="")
    except ValueError as error:
        _fail(str(error))


def _side(name: str, trace: Path | None, scheduler: str | None, labs: str) -> list[Line]:
    """The step lines of one side of a comparison; a scheduler that raises ends its replay."""
    if name not in list(Impl):
        return load_lines(Path(name))
    if trace is None:
        raise TraceError(f"{name} replays a trace; name its file: trace diff A B FILE")
    lines: list[Line] = []
    try:
        lines += _collect(replay_with(Impl(name), trace, scheduler, labs), lines)
    except (TraceError, OracleError):
        raise
    except Exception as error:
        lines.append({"step": len(lines), "error": f"{type(error).__name__}: {error}"})
    return lines


def _collect(replay: Iterator[Line], lines: list[Line]) -> list[Line]:
    """Append line by line, so that those before an error are kept."""
    for line in replay:
        lines.append(line)
    return []


def replay_with(impl: Impl, file: Path, scheduler: str | None, labs: str) -> Iterator[Line]:
    """Replay a trace file on one of the schedulers."""
    trace = load_trace(file)
    if impl is Impl.REFERENCE:
        return run_reference(trace, scheduler)
    if impl is Impl.LABS:
        return _replay_labs(file, labs)
    return _replay_vllm(trace)


def _replay_vllm(trace: Trace) -> Iterator[Line]:
    with Oracle(Environment.of(trace.config.profile)) as oracle:
        answer = oracle.replay(trace)
    yield from answer.lines
    if answer.error:
        raise RuntimeError(answer.error)


def _replay_labs(file: Path, labs: str) -> Iterator[Line]:
    """Replay with the learner's modules of some phases, such as "02,03"."""
    from labkit.course.manifest import Course, ManifestError
    from labkit.process.overlay import mapping_for

    course = Course(ROOT)
    try:
        mapping = mapping_for([course.phase(name) for name in labs.split(",")], "labs")
    except ManifestError as error:
        raise TraceError(str(error)) from None
    return replay_overlaid(file, mapping)


def replay_overlaid(file: Path, mapping: dict[str, str]) -> Iterator[Line]:
    """Replay in a child process in which other files stand in for some of the engine's modules."""
    from labkit.process.overlay import environment

    command = [sys.executable, "-m", "labkit", "trace", "run", str(file.resolve())]
    env = environment(ROOT, mapping) | {"PYTHONUNBUFFERED": "1"}  # keep the lines before a hang
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(command, env=env, stdout=output, stderr=errors, cwd=ROOT)
        try:
            until_ended(child.wait, patience := Patience(LABS_SECONDS, child.pid))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        output.seek(0)
        complete = (text for text in output if text.endswith("\n"))
        yield from (json.loads(text) for text in complete)
        errors.seek(0)
        message = errors.read().strip()
    if child.returncode < 0 and patience.left <= 0:
        told = patience.told()
        raise RuntimeError(f"no end within {told}; does a loop in your code never end?")
    if child.returncode:
        raise RuntimeError(message or f"the child process exited with {child.returncode}")


def _fail(message: str) -> NoReturn:
    print(message, file=sys.stderr)
    raise typer.Exit(1)
