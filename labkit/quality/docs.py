"""`labkit docs`: make again whatever in the documents a program makes, or say what is old.

    tour       docs/tour.md: a newcomer's session, with the real screens
    pictures   docs/pictures: reader, book and inspector; needs Chromium
    figures    numbers and drawings: the chapters' figures, README's phases, docs/speed.md, the
               names of docs/api.md and docs/glossary.md, docs/sheets.md, the contests of
               docs/arena.md, and in docs/instructors.md the plan of sessions and what grading was
               measured to cost and to catch

What takes long to measure (`suite-quality --write`, `benchmarks.bench_grading --save`) is kept in
files; `figures` shows what they hold.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import typer

from labkit.course import blocks, here
from labkit.course.console import polite
from labkit.course.manifest import Course, Phase
from labkit.course.root import ROOT, upstream_root
from labkit.quality import api, glossary, sessions, sheets, survey, tour

PICTURES = ROOT / "docs" / "pictures"


# ---------------------------------------------------------------- pages with generated parts
def phases_table(course: Course) -> str:
    """The course as README shows it: what is in the manifests."""
    lines = ["| phase | question it answers | hours | hardware |", "|---|---|---|---|"]
    return "\n".join([*lines, *map(_row, course.phases)])


def _row(phase: Phase) -> str:
    if not phase.ready:
        return f"| {phase.slug} | {phase.question} | planned | |"
    link = f"[{phase.slug}](phases/{phase.slug}/00-guide.md)"
    return f"| {link} | {phase.question} | {phase.hours:g} | {phase.hardware} |"


def tasks_here(course: Course) -> str:
    """How much of the course needs nothing but a browser."""
    total = sum(len(phase.exercises) for phase in course.ready)
    counts = [(p.number, len(here.tasks().get(p.slug, ())), len(p.exercises)) for p in course.ready]
    whole = ", ".join(number for number, part, of in counts if part == of)
    others = ", ".join(number for number, part, of in counts if 0 < part < of)
    return (
        f"Nothing to install: {here.count()} of the course's {total} tasks run in its pages,"
        f" all of phases {whole} and some of {others}."
    )


def quick_pages() -> dict[Path, dict[str, str]]:
    """Page -> its generated parts, those that take no time to make."""
    from benchmarks import (
        bench_grading,
        bench_offline,
        bench_quantization,
        bench_serving,
        dot_int8,
        llama_cpp,
        smollm2,
    )

    saved = json.loads(bench_grading.SAVED.read_text(encoding="utf-8"))
    instructors = {
        "grading": bench_grading.report(saved),
        "quality": survey.table(ROOT),
        "sessions": sessions.table(Course(ROOT)),
    }
    return {
        ROOT / "README.md": {
            "phases": phases_table(Course(ROOT)),
            "tasks in a browser": tasks_here(Course(ROOT)),
        },
        ROOT / "docs" / "speed.md": {
            "offline": bench_offline.report(),
            "serving": bench_serving.report(),
            "llama.cpp": llama_cpp.report(),
            "memory": smollm2.memory_table(),
            "quantization": bench_quantization.report(),
        },
        ROOT / "docs" / "instructors.md": instructors,
        ROOT / "phases" / "09-quantization" / "05-a-dot-product.md": {"dot": dot_int8.report()},
        api.PAGE: {"names": api.table()},
        ROOT / glossary.PAGE: {"glossary": glossary.table(Course(ROOT))},
        ROOT / sheets.PAGE: {"sheets": sheets.table(Course(ROOT))},
    }


def figures(check: bool) -> Iterator[str]:
    from labkit.arena import page
    from labkit.arena.cli import play_for_docs
    from labkit.arena.cost import load_model
    from labkit.arena.plots import save_all
    from labkit.reader import drawings

    pages = quick_pages()
    outcomes = play_for_docs()
    pages[page.PAGE] = page.blocks(outcomes, load_model())
    for path, parts in pages.items():
        if wrong := blocks.differences(path, parts):
            yield f"{path.relative_to(ROOT)}\n  " + "\n".join(wrong).replace("\n", "\n  ")
            if not check:
                blocks.write(path, parts)
    yield from (drawing.relative_to(ROOT).as_posix() for drawing in drawings.stale(ROOT))
    if not check:
        drawings.draw_all(ROOT)
        save_all(outcomes, page.PICTURES)


# ---------------------------------------------------------------- pictures
def take_pictures(folder: Path) -> Iterator[Path]:
    """Photograph reader, book and inspector.

    Raises:
        ValueError: upstream's source or a browser is missing.
    """
    from labkit.citations.symbols import Upstream
    from labkit.inspector import screenshots as of_inspector
    from labkit.reader import screenshots as of_reader
    from labkit.reader.book import build_all
    from labkit.reader.browser import BrowserError

    source = upstream_root(ROOT)
    if source is None:
        raise ValueError("the pictures show vLLM's source, which is not here: make upstream")
    course = Course(ROOT)
    build_all(course, Upstream(source))
    try:
        yield from of_reader.take(course, folder)
        yield from of_inspector.take(folder)
    except BrowserError as error:
        raise ValueError(f"no pictures: {error}") from None


def pictures(check: bool) -> Iterator[str]:
    from labkit.reader.pictures import label_of

    with tempfile.TemporaryDirectory() as folder:
        for new in take_pictures(Path(folder)):
            old = PICTURES / new.name
            if old.exists() and label_of(old.read_bytes()) == label_of(new.read_bytes()):
                continue
            yield f"docs/pictures/{new.name}"
            if not check:
                old.write_bytes(new.read_bytes())


# ---------------------------------------------------------------- the command
PARTS: dict[str, Callable[[bool], Iterator[str]]] = {
    "tour": tour.renew,
    "pictures": pictures,
    "figures": figures,
}
"""Each makes again what is old, or only looks, and yields what was old."""


@polite
def main(
    parts: list[str] = typer.Argument(None, help=f"{', '.join(PARTS)}; default: all"),
    check: bool = typer.Option(False, "--check", help="write nothing; exit code 1 if one is old"),
) -> None:
    """Make again what programs make in the documents."""
    for part in parts or ():
        if part not in PARTS:
            raise ValueError(f"there is no {part!r}; the parts are {', '.join(PARTS)}")
    old = 0
    for part in parts or PARTS:
        for what in PARTS[part](check):
            print(f"{'old' if check else 'made'}: {what}", flush=True)
            old += 1
    print(f"{', '.join(parts or PARTS)}: {f'{old} made again' if not check else f'{old} old'}")
    raise typer.Exit(1 if check and old else 0)
