"""The commands `read` and `book`."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from labkit.citations.symbols import Upstream
from labkit.course.manifest import Course, ManifestError
from labkit.course.root import UPSTREAM, find_root, upstream_root
from labkit.reader.book import OUTPUT, build_all, build_one
from labkit.reader.boxes import Tab
from labkit.tab import pyodide, site
from labkit.tab.serving import serve as serve_folder

Root = Annotated[Path | None, typer.Option("--project", hidden=True)]
Open = Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")]
Serve = Annotated[
    bool,
    typer.Option("--serve", help="Serve the pages here, so that tasks run in them."),
]
Port = Annotated[int, typer.Option("--port", help="For --serve.")]
From = Annotated[
    Path | None,
    typer.Option("--pyodide", help="A folder with Pyodide and its wheels; default: fetched."),
]


def read(
    phase: Annotated[str, typer.Argument(help="The phase, such as 03.")],
    show: Open = True,
    serve: Serve = False,
    port: Port = 8001,
    given: From = None,
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
    tab = _tab(course, given) if serve or given else None
    path = build_one(course, wanted, _upstream(course.root), tab)
    _finish(path, tab, show, port if serve else 0)


def book(
    show: Open = True,
    serve: Serve = False,
    port: Port = 8001,
    with_tab: Annotated[
        bool, typer.Option("--tab/--no-tab", help="Let tasks run in the pages.")
    ] = True,
    given: From = None,
    project: Root = None,
) -> None:
    """Build the whole course as a site, with search and a phase index."""
    course = Course(project or find_root())
    tab = _tab(course, given) if with_tab else None
    path = build_all(course, _upstream(course.root), tab)
    _finish(path, tab, show, port if serve else 0)


def _tab(course: Course, given: Path | None) -> Tab | None:
    """What runs tasks in the pages; None, and why, where it cannot be had."""
    try:
        return site.write(course, course.root / OUTPUT, given)
    except pyodide.Unavailable as why:
        typer.echo(f"{why} The pages are built without it: no task runs in them.")
        return None


def _upstream(project: Path) -> Upstream | None:
    root = upstream_root(project)
    if root is None:
        typer.echo(f"vLLM's source is not in {UPSTREAM}, so the pages link to GitHub instead.")
        typer.echo("`make upstream` fetches it.")
    return Upstream(root) if root else None


def _finish(path: Path, tab: Tab | None, show: bool, port: int) -> None:
    if tab:
        site.write_worker(path.parent)
    typer.echo(f"{path}  {path.stat().st_size / 1000:.0f} kB")
    if port:
        serve_folder(path, port, show)
    elif show and not webbrowser.open(path.as_uri()):
        typer.echo(f"Open it in your browser: {path.as_uri()}")
