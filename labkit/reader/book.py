"""The whole course as a site of static pages: phases, notes on upstream, one search for all."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

from labkit.citations.symbols import Upstream
from labkit.course.files import write_text
from labkit.course.manifest import Course, Phase
from labkit.reader import page, templates
from labkit.reader.page import Page

OUTPUT = Path("build") / "book"
NOTES = "upstream_notes"


def all_pages(course: Course) -> list[Page]:
    """Every page of the book: phases that are ready, then the notes."""
    phases = [page.phase_page(phase) for phase in course.ready]
    return [p for p in phases if p.files] + note_pages(course.root)


def note_pages(root: Path) -> list[Page]:
    """One page for each Markdown file below `upstream_notes/`."""
    folder = root / NOTES
    pages = []
    for file in sorted(folder.glob("**/*.md")):
        name = file.relative_to(folder).with_suffix("").as_posix()
        title = f"{name}.py" if "/" in name and name.startswith("v1") else name
        label = "Map" if title.endswith(".py") else "Note"
        pages.append(Page(f"note-{name.replace('/', '-')}", title, "", {file: ("note", label)}))
    return pages


def targets(pages: list[Page]) -> dict[Path, str]:
    """Where each Markdown file is in the built pages, for the links between them."""
    return {
        file.resolve(): f"{p.name}.html" + ("" if p.phase is None else f"#{prefix}")
        for p in pages
        for file, (prefix, _) in p.files.items()
    }


def build_one(course: Course, phase: Phase, upstream: Upstream | None) -> Path:
    """Write the page of one phase and return its path."""
    output = course.root / OUTPUT
    pages = all_pages(course)
    [wanted] = [p for p in pages if p.phase is phase] or [page.phase_page(phase)]
    path = output / f"{wanted.name}.html"
    write_text(path, page.build(wanted, output, upstream, targets(pages)))
    return path


def build_all(course: Course, upstream: Upstream | None) -> Path:
    """Write every page, the index and the search's data; return the index's path."""
    output = course.root / OUTPUT
    pages = all_pages(course)
    where = targets(pages)
    entries: list[tuple[str, str, str]] = []
    for one in pages:
        text = page.build(one, output, upstream, where)
        write_text(output / f"{one.name}.html", text)
        entries += _search_entries(one)
    data = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")
    write_text(output / "search-index.js", f"window.BOOK_INDEX={data};\n")
    write_text(output / "index.html", _index(course, pages))
    return output / "index.html"


def _search_entries(one: Page) -> list[tuple[str, str, str]]:
    """(text, where, link) for each heading and paragraph of a page."""
    name = f"{one.mark} {one.title}".strip()
    entries = []
    for (prefix, label), chapter in zip(one.files.values(), one.rendered, strict=True):
        where, anchor = f"{name} · {label}" if one.phase else name, prefix
        for tag, identity, body in re.findall(
            r'<(h[1-4]|p|li|td)(?: id="([^"]*)")?>(.*?)</\1>', chapter.html, re.DOTALL
        ):
            text = html.unescape(re.sub(r"<[^>]+>", "", body)).removesuffix("#").strip()
            if tag[0] == "h":
                anchor = identity or anchor
            if len(text) > 2:
                entries.append((" ".join(text.split())[:400], where, f"{one.name}.html#{anchor}"))
    return entries


def _index(course: Course, pages: list[Page]) -> str:
    """The start page: every phase with its question, then the notes."""
    built = {p.phase.slug: p for p in pages if p.phase}
    others = [p for p in pages if p.phase is None]
    return templates.render(
        "index.html",
        style=page.asset("reader.css"),
        phases=[(phase, built.get(phase.slug)) for phase in course.phases],
        notes=[p for p in others if not p.title.endswith(".py")],
        maps=[p for p in others if p.title.endswith(".py")],
        cited=_places_cited,
    )


def _places_cited(one: Page) -> int:
    return len({(c.path, c.region) for chapter in one.rendered for c in chapter.citations})
