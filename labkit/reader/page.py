"""One page of the reader: chapters on the left, the cited source and your files on the right."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from markupsafe import Markup

from labkit.citations.changed import changes_since_the_pin
from labkit.citations.scan import REPOSITORY
from labkit.citations.symbols import Upstream
from labkit.course import source
from labkit.course.manifest import Exercise, Phase
from labkit.course.root import PIN, ROOT
from labkit.course.skeleton import is_hole
from labkit.course.state import State
from labkit.reader import boxes, code, excerpts, markdown, templates
from labkit.reader.boxes import Tab

ASSETS = Path(__file__).parent / "assets"
CHAPTERS = {
    "00-guide.md": ("guide", "Guide"),
    "01-deep-dive.md": ("deep-dive", "Deep dive"),
    "02-mini-build.md": ("build", "Build"),
    "03-labs.md": ("labs", "Labs"),
}


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


def build(
    page: Page,
    output: Path,
    upstream: Upstream | None,
    pages: dict[Path, str],
    searched: bool = False,
    tab: Tab | None = None,
) -> str:
    """The page as HTML that needs no other file, but for the search's data and the tab.

    Args:
        page: what to show; its `rendered` chapters are filled in.
        output: folder that the page will be written to, for its relative links.
        upstream: the pinned source; without it, places are listed with their links.
        pages: Markdown files that other pages of this build hold.
        searched: whether the search of the whole book lies beside the page.
        tab: what runs the tasks lies beside the page, in `try/`.
    """
    prefixes = {file.name: prefix for file, (prefix, _) in page.files.items()}
    labs = _lab_files(page.phase) if page.phase else []
    names = {task.name: f"#{task.anchor}" for lab in labs for task in lab.tasks}
    names |= {name: f"#{prefix}" for name, prefix in prefixes.items()}
    names |= _note_names(pages, output)
    changes = changes_since_the_pin(ROOT)
    page.rendered = []
    for file, (prefix, _) in page.files.items():
        links = markdown.Links(file, output, prefixes, pages, names, changes)
        page.rendered.append(markdown.render(file.read_text("utf-8"), prefix, links))
    cited = [citation for chapter in page.rendered for citation in chapter.citations]
    found = excerpts.collect(cited, upstream)
    about = boxes.facts_of(page.phase, tab) if tab and page.phase else ""
    return templates.render(
        "page.html",
        style=asset("reader.css") + (asset("tab.css") if about else ""),
        tab=tab,
        about=Markup(about),
        script="\n".join(map(asset, ("theme.js", "search.js", "reader.js"))),
        title=page.title,
        mark=page.mark,
        home="index.html" if pages else "#",
        searched=searched,
        layout=_layout(bool(found), bool(labs)),
        chapters=page.files.values(),
        articles=[_article(page, i, tab) for i in range(len(page.rendered))],
        found=found,
        files=labs,
        places=Markup(_places(found).replace("</", "<\\/")),
        lines_of=_lines_of,
        repository=REPOSITORY,
        pin=PIN,
    )


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


def _article(page: Page, index: int, tab: Tab | None) -> tuple[str, str, Markup]:
    """Anchor and name of a chapter, and its text with a table of contents below the title, and the
    box of each task."""
    file, (prefix, label) = list(page.files.items())[index]
    chapter, text = page.rendered[index], page.rendered[index].html
    if tab and page.phase:
        text = boxes.with_boxes(page.phase, file.name, prefix, text)
    entries = [h for h in chapter.headings if h.level == 2]
    heading, closing, rest = text.partition("</h1>\n")
    if not closing or len(entries) <= 2:
        return prefix, label, Markup(text)
    contents = templates.render("contents.html", entries=entries)
    return prefix, label, Markup(f"{heading}{closing}{contents}{rest}")


def _lines_of(excerpt: excerpts.Excerpt) -> Markup:
    """The cited lines of an upstream file and those around them."""
    assert excerpt.source is not None
    coloured = code.highlight_lines(excerpt.source.text, "python")
    lines = [(n, coloured[n - 1]) for n in excerpt.shown_lines()]
    return Markup(code.numbered(lines, f"u{excerpt.number}"))


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


@dataclass(frozen=True)
class Task:
    """A function of a lab file that is to be written: its line's anchor; `state` is "open", or how
    its task was last judged: "passed", "failed", "not judged yet"."""

    id: str
    name: str
    anchor: str
    state: str


@dataclass
class LabFile:
    """One of the learner's files; `text` is None where it is missing, and `restore` brings it
    back."""

    key: str
    shown: str
    restore: str
    text: str | None = None
    tasks: list[Task] = field(default_factory=list)
    lines: str = ""


def _lab_files(phase: Phase) -> list[LabFile]:
    """The learner's files of a phase."""
    files = []
    for number, module in enumerate(phase.modules, start=1):
        file = LabFile(f"m{number}", phase.lab_path(module), f"make reset-{phase.number}")
        path = phase.lab_file(module)
        if path.is_file():
            file.text = path.read_text("utf-8")
            _read_lab_file(file, phase.holes(module), State(phase.root).verdicts(phase))
        files.append(file)
    return files


def _read_lab_file(
    file: LabFile, holes: Mapping[str, Exercise], verdicts: Mapping[str, str]
) -> None:
    """Find the tasks of a lab file, and colour its lines with those to be written marked."""
    text = file.text or ""
    try:
        known = source.functions(text)
    except (SyntaxError, ValueError):
        known = {}
    todo: set[int] = set()
    for name, task in holes.items():
        if (function := known.get(name)) is None:
            continue
        state = "open" if is_hole(function) else verdicts.get(task.id, "not judged yet")
        if state == "open":
            todo.update(range(function.body_line, function.end_line + 1))
        file.tasks.append(Task(task.id, name, f"{file.key}-{function.line}", state))
    lines = list(enumerate(code.highlight_lines(text, "python"), start=1))
    file.lines = Markup(code.numbered(lines, file.key, todo))
