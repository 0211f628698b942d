"""The whole course as a site of static pages: phases, notes on upstream, one search for all."""

from __future__ import annotations

import html
import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

from labkit.citations.symbols import Upstream
from labkit.course import here
from labkit.course.files import write_text
from labkit.course.manifest import Course, Phase
from labkit.reader import page, templates
from labkit.reader.boxes import Tab
from labkit.reader.markdown import BADGES
from labkit.reader.page import Page

OUTPUT = Path("build") / "book"
NOTES = "upstream_notes"
PAGES_OF_DOCS = {
    "map": "Map",
    "glossary": "Glossary",
    "sheets": "Sheets",
    "design": "Three designs",
    "real-vllm": "Real vLLM",
}
"""Of `docs/`, these are read beside the chapters, under these titles."""
SEARCH = "search-index.js"
BOOK = "make book"


def all_pages(course: Course) -> list[Page]:
    """Every page of the book: phases that are ready, some of `docs/`, then the notes."""
    phases = [page.phase_page(phase) for phase in course.ready]
    return [p for p in phases if p.files] + docs_pages(course.root) + note_pages(course.root)


def docs_pages(root: Path) -> list[Page]:
    """One page for each file of PAGES_OF_DOCS that is there."""
    files = {root / "docs" / f"{name}.md": title for name, title in PAGES_OF_DOCS.items()}
    return [
        Page(f"docs-{file.stem}", title, "", {file: (file.stem, "Page")})
        for file, title in files.items()
        if file.exists()
    ]


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


def build_one(
    course: Course, phase: Phase, upstream: Upstream | None, tab: Tab | None = None
) -> Path:
    """Write the page of one phase and return its path. Where no page is yet that it may lead to,
    one stands in that says which command builds it.

    Args:
        tab: what `labkit.tab.site.write` has put beside the page.
    """
    output = course.root / OUTPUT
    pages = all_pages(course)
    [wanted] = [p for p in pages if p.phase is phase] or [page.phase_page(phase)]
    path = output / f"{wanted.name}.html"
    searched = (output / SEARCH).exists()
    write_text(path, page.build(wanted, output, upstream, targets(pages), searched, tab))
    for name, title, command in [("index", "The start page", BOOK), *map(_stand_in, pages)]:
        if not (output / f"{name}.html").exists():
            write_text(output / f"{name}.html", _absent(title, command))
    return path


def _stand_in(one: Page) -> tuple[str, str, str]:
    """Name and title of a page, and what builds it."""
    command = f"make read-{one.phase.number}" if one.phase else BOOK
    return one.name, f"{one.mark} {one.title}".strip(), command


def _absent(title: str, command: str) -> str:
    style = page.asset("reader.css")
    return templates.render("absent.html", style=style, title=title, command=command, book=BOOK)


def build_all(course: Course, upstream: Upstream | None, tab: Tab | None = None) -> Path:
    """Write every page, the index and the search's data; return the index's path.

    Args:
        tab: what `labkit.tab.site.write` has put beside the pages.
    """
    output = course.root / OUTPUT
    pages = all_pages(course)
    where = targets(pages)
    found = Found()
    for one in pages:
        text = page.build(one, output, upstream, where, searched=True, tab=tab)
        write_text(output / f"{one.name}.html", text)
        _add_to_search(found, one)
    data = json.dumps(asdict(found), ensure_ascii=False, separators=(",", ":"))
    write_text(output / SEARCH, "window.BOOK={};\n".format(data.replace("</", "<\\/")))
    write_text(output / "index.html", _index(course, pages, tab))
    return output / "index.html"


@dataclass
class Found:
    """What can be searched: sections are (where, link); entries (text, its section, whether it is
    the section's title)."""

    sections: list[tuple[str, str]] = field(default_factory=list)
    entries: list[tuple[str, int, bool]] = field(default_factory=list)


def _add_to_search(found: Found, one: Page) -> None:
    """Add each heading and paragraph, below its "03 Scheduler · Build › Task 3: the victim"."""
    name = f"{one.mark} {one.title}".strip()
    for (prefix, label), chapter in zip(one.files.values(), one.rendered, strict=True):
        where = f"{name} · {label}" if one.phase else name
        found.sections.append((where, f"{one.name}.html#{prefix}"))
        for tag, identity, body in re.findall(
            r'<(h[1-4]|p|li|td)(?: id="([^"]*)")?>(.*?)</\1>',
            BADGES.sub("", chapter.html),
            re.DOTALL,
        ):
            text = html.unescape(re.sub(r"<[^>]+>", "", body)).removesuffix("#").strip()
            text = " ".join(text.split())[:400]
            if tag in ("h2", "h3", "h4"):
                found.sections.append(
                    (f"{where} › {text}", f"{one.name}.html#{identity or prefix}")
                )
            if len(text) > 2:
                found.entries.append((text, len(found.sections) - 1, tag[0] == "h"))


def _index(course: Course, pages: list[Page], tab: Tab | None) -> str:
    """The start page: every phase with its question, then the notes."""
    built = {p.phase.slug: p for p in pages if p.phase}
    others = [p for p in pages if p.phase is None]
    return templates.render(
        "index.html",
        style=page.asset("reader.css"),
        script="\n".join(map(page.asset, ("theme.js", "search.js", "index.js"))),
        searched=True,
        tab=tab,
        here={slug: len(names) for slug, names in here.tasks().items()} if tab else {},
        phases=[(phase, built.get(phase.slug)) for phase in course.phases],
        notes=[p for p in others if not p.title.endswith(".py")],
        maps=[p for p in others if p.title.endswith(".py")],
        cited=_places_cited,
    )


def _places_cited(one: Page) -> int:
    return len({(c.path, c.region) for chapter in one.rendered for c in chapter.citations})
