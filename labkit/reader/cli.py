"""The commands `read` and `book`."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from labkit.citations.symbols import Upstream
from labkit.course.manifest import Course, ManifestError
from labkit.course.root import UPSTREAM, find_root, upstream_root
from labkit.reader.book import build_all, build_one

Root = Annotated[Path | None, typer.Option("--project", hidden=True)]
Open = Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")]


def read(
    phase: Annotated[str, typer.Argument(help="The phase, such as 03.")],
    show: Open = True,
    project: Root = None,
) -> None:
    """Read a phase: chapters on the left, upstream and your own files on the right."""
    course = Course(project or find_root())
    try:
        wanted = course.phase(phase)
    except ManifestError as error:
        typer.echo(str(error))
        raise typer.Exit(2) from None
    if not any(wanted.folder.glob("*.md")):
        typer.echo(f"phase {wanted.slug} has no chapters yet: {wanted.question}")
        raise typer.Exit(1)
    _finish(build_one(course, wanted, _upstream(course.root)), show)


def book(show: Open = True, project: Root = None) -> None:
    """Build the whole course as a site, with search and a phase index."""
    course = Course(project or find_root())
    _finish(build_all(course, _upstream(course.root)), show)


def _upstream(project: Path) -> Upstream | None:
    root = upstream_root(project)
    if root is None:
        typer.echo(f"vLLM's source is not in {UPSTREAM}, so the pages link to GitHub instead.")
        typer.echo("`make upstream` fetches it.")
    return Upstream(root) if root else None


def _finish(path: Path, show: bool) -> None:
    typer.echo(f"{path}  {path.stat().st_size / 1000:.0f} kB")
    if show and not webbrowser.open(path.as_uri()):
        typer.echo(f"Open it in your browser: {path.as_uri()}")
