"""One page of the reader: chapters on the left, the cited source and your files on the right."""

from __future__ import annotations

import html
import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from string import Template

from labkit.citations.scan import REPOSITORY
from labkit.citations.symbols import Upstream
from labkit.course import source
from labkit.course.manifest import Phase
from labkit.course.root import PIN
from labkit.course.skeleton import is_hole
from labkit.reader import code, excerpts, markdown

ASSETS = Path(__file__).parent / "assets"
CHAPTERS = {
    "00-guide.md": ("guide", "Guide"),
    "01-deep-dive.md": ("deep-dive", "Deep dive"),
    "02-mini-build.md": ("build", "Build"),
    "03-labs.md": ("labs", "Labs"),
}
ATTRIBUTION = (
    f'Source shown under “Upstream”: <a href="{REPOSITORY}/tree/{PIN}">vLLM {PIN}</a>, '
    "© the vLLM project’s contributors, Apache License 2.0. Excerpts, unchanged."
)


@dataclass
class Page:
    """What a page is made of.

    Attributes:
        name: file name without `.html`.
        title: for the window and the bar; `mark` stands before it, such as "03".
        files: Markdown file -> (anchor prefix, name on its tab).
        phase: its phase, whose lab files are shown; None for notes.
    """

    name: str
    title: str
    mark: str
    files: dict[Path, tuple[str, str]]
    phase: Phase | None = None
    rendered: list[markdown.Rendered] = field(default_factory=list)


def phase_page(phase: Phase) -> Page:
    """The page of one phase, with those of its chapters that exist."""
    files = {phase.folder / name: tab for name, tab in CHAPTERS.items()}
    files |= {file: further_tab(file) for file in sorted(phase.folder.glob("0[4-9]-*.md"))}
    existing = {file: tab for file, tab in files.items() if file.is_file()}
    return Page(phase.slug, phase.title, phase.number, existing, phase)


def further_tab(file: Path) -> tuple[str, str]:
    """Prefix and tab of a chapter beyond the four: "04-inside-a-gpu.md" is "Inside a GPU"."""
    words = file.stem.partition("-")[2]
    return words, words.replace("-", " ").capitalize().replace("gpu", "GPU")


@cache
def asset(name: str) -> str:
    return (ASSETS / name).read_text("utf-8")


def build(page: Page, output: Path, upstream: Upstream | None, pages: dict[Path, str]) -> str:
    """The page as HTML that needs no other file.

    Args:
        page: what to show; its `rendered` chapters are filled in.
        output: folder that the page will be written to, for its relative links.
        upstream: the pinned source; without it, places are listed with their links.
        pages: Markdown files that other pages of this build hold.
    """
    prefixes = {file.name: prefix for file, (prefix, _) in page.files.items()}
    labs = _lab_files(page.phase) if page.phase else []
    names = {name: f"#{place}" for lab in labs for name, place in lab.tasks.items()}
    names |= {name: f"#{prefix}" for name, prefix in prefixes.items()}
    names |= _note_names(pages, output)
    page.rendered = []
    for file, (prefix, _) in page.files.items():
        links = markdown.Links(file, output, prefixes, pages, names)
        page.rendered.append(markdown.render(file.read_text("utf-8"), prefix, links))
    cited = [citation for chapter in page.rendered for citation in chapter.citations]
    found = excerpts.collect(cited, upstream)
    mine = "".join(lab.html for lab in labs)
    values = {
        "title": html.escape(page.title),
        "mark": html.escape(page.mark),
        "css": asset("reader.css"),
        "script": asset("reader.js"),
        "home": "index.html" if pages else "#",
        "chapters": "".join(_tab(prefix, label) for prefix, label in page.files.values()),
        "articles": "".join(_article(page, i) for i in range(len(page.rendered))),
        "layout": _layout(bool(found), bool(mine)),
        "picker": _picker(found),
        "upstream": "".join(_upstream_file(e) for e in found) or _nothing_cited(),
        "mine": mine or '<p class="empty">This page has no files to edit.</p>',
        "places": _places(found).replace("</", "<\\/"),
        "attribution": ATTRIBUTION if found else "",
        "book": '<script src="search-index.js"></script>' if pages else "",
    }
    return Template(asset("page.html")).substitute(values)


def _note_names(pages: dict[Path, str], output: Path) -> dict[str, str]:
    """Paths of notes and chapters, from the project's root, and the pages that hold them."""
    root = output.resolve().parents[1]
    inside = {path: page for path, page in pages.items() if path.is_relative_to(root)}
    return {path.relative_to(root).as_posix(): page for path, page in inside.items()}


def _layout(cites: bool, has_files: bool) -> str:
    """Classes of the page: two columns, or one; with or without the tab of your files."""
    if not cites and not has_files:
        return "single"
    return "split" if has_files else "split no-files"


def _tab(prefix: str, label: str) -> str:
    return f'<a href="#{prefix}" data-chapter="{prefix}">{html.escape(label)}</a>'


def _article(page: Page, index: int) -> str:
    (prefix, label), chapter = list(page.files.values())[index], page.rendered[index]
    entries = [h for h in chapter.headings if h.level == 2]
    contents = "".join(f'<li><a href="#{h.anchor}">{html.escape(h.text)}</a></li>' for h in entries)
    toc = f'<nav class="toc" aria-label="In this chapter"><ol>{contents}</ol></nav>'
    heading, closing, rest = chapter.html.partition("</h1>\n")
    body = f"{heading}{closing}{toc}{rest}" if closing and len(entries) > 2 else chapter.html
    return f'<article class="prose" id="{prefix}" aria-label="{label}">{body}</article>\n'


def _picker(found: list[excerpts.Excerpt]) -> str:
    """A menu of all cited places, file by file."""
    groups = []
    for excerpt in found:
        options = "".join(
            f'<option value="u{excerpt.number}.{place.number}">{place.citation.symbol}'
            f" · {place.citation.region}</option>"
            for place in sorted(excerpt.places, key=lambda p: p.citation.first)
        )
        groups.append(f'<optgroup label="{html.escape(excerpt.name)}">{options}</optgroup>')
    return "".join(groups)


def _upstream_file(excerpt: excerpts.Excerpt) -> str:
    key = f"u{excerpt.number}"
    if excerpt.source is None:
        rows = "".join(
            f'<li><a href="{p.citation.url}"><code>{p.citation.symbol}</code></a>'
            f" lines {p.citation.region}</li>"
            for p in excerpt.places
        )
        content = (
            '<p class="empty">The source is not on this machine. <code>make upstream</code> '
            f"fetches it; until then these places are on GitHub:</p><ul>{rows}</ul>"
        )
    else:
        coloured = code.highlight_lines(excerpt.source.text, "python")
        lines = [(n, coloured[n - 1]) for n in excerpt.shown_lines()]
        content = f'<div class="lines">{code.numbered(lines, key)}</div>'
    return f'<div class="file" id="{key}" data-path="{excerpt.path}" hidden>{content}</div>'


def _nothing_cited() -> str:
    return '<p class="empty">No chapter of this page cites upstream.</p>'


def _places(found: list[excerpts.Excerpt]) -> str:
    """What the script needs to know of each place, as JSON."""
    places = [
        {
            "key": f"u{excerpt.number}.{place.number}",
            "file": f"u{excerpt.number}",
            "path": excerpt.path,
            "first": place.citation.first,
            "last": place.citation.last,
            "symbol": place.citation.symbol,
            "url": place.citation.url,
            "owners": [list(owner) for owner in place.owners],
        }
        for excerpt in found
        for place in excerpt.places
    ]
    return json.dumps(places, ensure_ascii=False)


@dataclass
class LabFile:
    """One of the learner's files as HTML, and the anchor of each function to write."""

    html: str
    tasks: dict[str, str] = field(default_factory=dict)


def _lab_files(phase: Phase) -> list[LabFile]:
    """The learner's files of a phase; a missing one says how to get it back."""
    files = []
    for number, module in enumerate(phase.modules, start=1):
        key, shown, file = f"m{number}", phase.lab_path(module), phase.lab_file(module)
        if file.is_file():
            holes = {name: task.id for name, task in phase.holes(module).items()}
            files.append(_lab_file(key, shown, file.read_text("utf-8"), holes))
        else:
            restore = f"<code>make reset-{phase.number}</code> restores it."
            text = f'<p class="empty"><code>{shown}</code> is not there. {restore}</p>'
            files.append(LabFile(f'<div class="file" id="{key}">{text}</div>'))
    return files


def _lab_file(key: str, shown: str, text: str, holes: dict[str, str]) -> LabFile:
    """One lab file: a list of its tasks, then its lines, with those to be written marked."""
    try:
        known = source.functions(text)
    except (SyntaxError, ValueError):
        known = {}
    rows, tasks = "", {}
    todo: set[int] = set()
    for name, task in holes.items():
        if (function := known.get(name)) is None:
            continue
        tasks[name] = f"{key}-{function.line}"
        state = "open" if is_hole(function) else "written"
        if state == "open":
            todo.update(range(function.body_line, function.end_line + 1))
        rows += (
            f'<li class="{state}"><a href="#{tasks[name]}">{task}</a> '
            f"<code>{html.escape(name)}</code> <span>{state}</span></li>"
        )
    lines = list(enumerate(code.highlight_lines(text, "python"), start=1))
    listed = f'<ol class="tasks">{rows}</ol>' if rows else ""
    body = (
        f'<h3 class="path">{html.escape(shown)}</h3>{listed}'
        f'<div class="lines">{code.numbered(lines, key, todo)}</div>'
    )
    return LabFile(
        f'<div class="file" id="{key}" data-path="{html.escape(shown)}">{body}</div>', tasks
    )
