"""`python -m labkit inspect TRACE [--against OTHER]`."""

from __future__ import annotations

import json
import re
import webbrowser
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from labkit.course.files import write_text
from labkit.course.remedies import remedy
from labkit.course.root import ROOT
from labkit.inspector.page import build_page
from labkit.inspector.perfetto import to_perfetto
from labkit.inspector.recording import RecordingError, Run
from labkit.inspector.sources import IMPLS, Replay, load
from labkit.inspector.terminal import show

TRACE_HELP = "a recording (--timeline, trace run), a trace, a golden or a difference file"
AGAINST_HELP = "a second one beside it; for a trace also reference, labs, vllm, or a scheduler"


def inspect(
    trace: Annotated[Path | None, typer.Argument(help=TRACE_HELP)] = None,
    against: Annotated[str | None, typer.Option(help=AGAINST_HELP)] = None,
    out: Annotated[Path | None, typer.Option(help="the HTML file to write")] = None,
    show_page: Annotated[bool, typer.Option("--open", help="open it in the browser")] = False,
    terminal: Annotated[bool, typer.Option("--terminal", help="show it here instead")] = False,
    step: Annotated[int | None, typer.Option(min=0, help="with --terminal: this step")] = None,
    perfetto: Annotated[Path | None, typer.Option(help="write a Perfetto trace instead")] = None,
    impl: Annotated[
        str, typer.Option(help="who replays a trace: " + ", ".join(IMPLS))
    ] = "reference",
    scheduler: Annotated[str | None, typer.Option(help="... with this scheduler")] = None,
    labs: Annotated[str, typer.Option(help="phases that are yours with labs")] = "02,03",
    config: Annotated[Path | None, typer.Option(help="the trace that a recording is of")] = None,
    seed: Annotated[int | None, typer.Option(help="which trace of a golden file")] = None,
) -> None:
    """Look into a run: who computed what in each step, and where every block went."""
    if trace is None:
        _fail(
            "say which run: make inspect TRACE=run.jsonl, which `python -m mini_vllm generate"
            ' storyteller "Once" --timeline run.jsonl` writes; docs/traces holds some, too'
        )
    if impl not in IMPLS:
        _fail(f"--impl {impl}: it must be one of {', '.join(IMPLS)}")
    if scheduler and impl != "reference":
        _fail(f"--scheduler goes with --impl reference, not with --impl {impl}")
    try:
        runs = load(trace, against, Replay(impl, scheduler, labs), config, seed)
        if terminal:
            show(runs, step)
        if perfetto:
            write_text(perfetto, json.dumps(to_perfetto(runs)) + "\n")
            typer.echo(f"{perfetto}  open it in https://ui.perfetto.dev or chrome://tracing")
        if out or not (terminal or perfetto):
            _write_page(runs, _title(trace, runs), out, show_page)
    except RecordingError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"cannot be written: {remedy(error)}")


def _title(trace: Path, runs: list[Run]) -> str:
    """The file, and who ran it if the names do not say so already."""
    names = " beside ".join(run.name for run in runs)
    return names if trace.name in names else f"{trace.name}: {names}"


def _write_page(runs: list[Run], title: str, out: Path | None, show_page: bool) -> None:
    name = re.sub(r"[^\w.-]+", "-", title) + ".html"
    path = out or ROOT / "reports" / "inspect" / name
    write_text(path, build_page(runs, title))
    typer.echo(f"{path}  {path.stat().st_size / 1000:.0f} kB, {len(runs[0].lines)} steps")
    if show_page and not webbrowser.open(path.resolve().as_uri()):
        typer.echo(f"Open it in your browser: {path.resolve().as_uri()}")


def _fail(message: str) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(1)
