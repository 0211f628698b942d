"""`check-kernel`: judge one kernel, or all of them."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from labkit.course.console import Screen, course, polite
from labkit.course.files import write_text
from labkit.kernels.cases import SPECS
from labkit.kernels.check import Checker
from labkit.kernels.measure.roofline import DATASHEETS, draw, points_of
from labkit.kernels.screen import show_result
from labkit.kernels.verdict.report import CheckResult

KERNEL = typer.Argument("", help="a kernel's name, or `all`; without one: the list of them")


@polite
def main(
    kernel: str = KERNEL,
    file: str = typer.Option("", help="the file with the kernel; default: yours, or the engine's"),
    mode: str = typer.Option("cpu", help="cpu, or gpu: the same and then on this GPU"),
    seed: int = typer.Option(-1, help="draw the cases from this number; default: a new secret"),
    sample: int = typer.Option(0, help="run only so many cases, once each; 0 = all"),
    json_file: str = typer.Option("", "--json", help="write everything found to this file"),
    plot: str = typer.Option("", help="write a roofline plot (PNG) to this file"),
    gpu: str = typer.Option("H200", help=f"predict for: {', '.join(DATASHEETS)}"),
) -> None:
    """Judge a Triton kernel, without a GPU as far as that goes. Exit code 0 only if it passes."""
    if kernel not in ("all", *SPECS):
        names = ", ".join(SPECS)
        raise ValueError(
            f"{f'there is no kernel {kernel!r}; ' if kernel else ''}say which kernel: {names}, all"
        )
    if gpu not in DATASHEETS:
        raise ValueError(f"no datasheet of {gpu!r} is known; known: {', '.join(DATASHEETS)}")
    known, results = course(), []
    with Checker(known.root) as checker:
        for name in SPECS if kernel == "all" else [kernel]:
            results.append(
                checker.check(name, file or None, mode, None if seed < 0 else seed, sample or None)
            )
            show_result(Screen(), results[-1], known, DATASHEETS[gpu])
    save(results, json_file, plot, gpu)
    raise typer.Exit(0 if all(result.passed for result in results) else 1)


def save(results: list[CheckResult], json_file: str, plot: str, gpu: str) -> None:
    """Write what was asked for: one result as an object, several as a list."""
    if json_file:
        data = [result.plain() for result in results]
        text = json.dumps(data[0] if len(data) == 1 else data, indent=1)
        write_text(Path(json_file), text + "\n")
        print(f"wrote {json_file}")
    if plot:
        points = [point for result in results for point in points_of(result)]
        draw(points, DATASHEETS[gpu], Path(plot))
        print(f"wrote {plot}")
