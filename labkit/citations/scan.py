"""Finds every citation of upstream in the course: Markdown links, `Source:` lines, notebooks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from labkit.citations.symbols import is_page
from labkit.course.manifest import Course
from labkit.course.root import PIN

REPOSITORY = "https://github.com/vllm-project/vllm"
PLACES = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/**/*.md",
    "phases/**/*.md",
    "phases/**/*.toml",
    "phases/**/*.py",
    "solutions/**/*.md",
    "solutions/**/*.ipynb",
    "labs/**/*.ipynb",
    "upstream_notes/**/*.md",
    "mini_vllm/**/*.py",
)

_URL = re.compile(
    r"https?://(?:(?:www\.)?github\.com/vllm-project/vllm/(?:blob|tree|raw|blame)"
    r"|raw\.githubusercontent\.com/vllm-project/vllm)"
    r"/(?P<ref>[^/\s)]+)(?:/(?P<path>[^\s)#?\"'>`]*))?(?P<plain>\?plain=1)?(?P<lines>#[^\s)\"'>`]*)?"
)
_LINK_TEXT = re.compile(r"\[([^\[\]]*)\]\($")
_SYMBOL = re.compile(r"`([A-Za-z_][\w.]*)(?:\(\))?`")
_WORDS = re.compile(r"`([^`]+)`")
_LINES = re.compile(r"#L(\d+)(?:-L(\d+))?$")
_WRAP = r"[ \t]*(?:\n[ \t]*#?[ \t]*)?"
_SOURCE = re.compile(
    r"(?<![\w/.])(?P<path>vllm/[\w/.-]+)#L(?P<first>\d+)(?:-L(?P<last>\d+))?"
    rf"{_WRAP}\((?P<symbols>[A-Za-z_][\w.]*(?:\(\))?(?:, [A-Za-z_][\w.]*(?:\(\))?)*)\)"
    rf"(?:{_WRAP}@[ \t]*(?P<ref>v[\w.]*\w))?"
)
_SOURCE_ATTEMPT = re.compile(r"Source:\s*vllm/\S*|(?<![\w/.])vllm/[\w/.-]+\.py#\S*")
_FENCE = re.compile(r"^[ \t]*(```+|~~~+)[^\n]*\n.*?^[ \t]*\1[ \t]*$", re.MULTILINE | re.DOTALL)
_INLINE_CODE = re.compile(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)")

PAGE_FORM = f"[`A heading`]({REPOSITORY}/blob/{PIN}/....md?plain=1#L10-L20)"
LINK_FORM = f"[`Symbol`]({REPOSITORY}/blob/{PIN}/vllm/....py#L10-L20)"
SOURCE_FORM = f"Source: vllm/....py#L10-L20 (Symbol) @ {PIN}"


@dataclass(frozen=True)
class Citation:
    """One claim that lines `first..last` of upstream's `path` hold `symbol`."""

    path: str
    first: int
    last: int
    symbol: str
    where: str
    """File and line of the citation itself, such as `phases/03-scheduler/01-deep-dive.md:57`."""

    @property
    def region(self) -> str:
        return f"{self.first}-{self.last}"

    @property
    def url(self) -> str:
        plain = "?plain=1" if is_page(self.path) else ""
        return f"{REPOSITORY}/blob/{PIN}/{self.path}{plain}#L{self.first}-L{self.last}"


@dataclass(frozen=True)
class Problem:
    """Something wrong at `where`: what it is, and where to look next."""

    where: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" + (f"\n    {self.hint}" if self.hint else "")


Found = Citation | Problem


def scan_project(project: Path) -> list[Found]:
    """Every citation of the project, and a problem for each one that cannot be read."""
    files = {path for place in PLACES for path in project.glob(place)}
    regular = (f for f in sorted(files) if f.is_file() and ".ipynb_checkpoints" not in f.parts)
    return [found for file in regular for found in scan_file(file, project)]


def scan_file(file: Path, project: Path) -> list[Found]:
    """The citations of one file, in the order in which they stand there."""
    name = file.relative_to(project).as_posix()
    text = file.read_text("utf-8")
    if file.suffix == ".ipynb":
        return list(_scan_notebook(text, name))
    return list(scan_text(text, name, file.suffix))


def scan_text(text: str, name: str, suffix: str = ".md") -> Iterator[Found]:
    """Links of a text and, in Python and TOML, `Source:` lines. Fenced code is not a citation."""
    if "vllm" not in text:
        return
    if suffix == ".md":
        text = _INLINE_CODE.sub(_blank_urls, _FENCE.sub(_blank, text))
    else:
        yield from _scan_sources(text, name, versioned=suffix == ".py")
    for match in _URL.finditer(text):
        where = f"{name}:{text.count(chr(10), 0, match.start()) + 1}"
        yield _read_link(match, _LINK_TEXT.search(text[: match.start()][-300:]), where)


def _read_link(match: re.Match[str], label: re.Match[str] | None, where: str) -> Found:
    ref, path, lines = match["ref"], match["path"] or "", _LINES.match(match["lines"] or "")
    page = bool(path) and is_page(path) and lines is not None
    symbol = (_WORDS if page else _SYMBOL).search(label[1]) if label else None
    if ref != PIN:
        return Problem(where, f"links to vLLM at {ref!r}; the course cites {PIN} only", LINK_FORM)
    if symbol is None:
        return Problem(where, "the link's text must name the symbol in backticks", LINK_FORM)
    if lines is None:
        return Problem(where, f"the link to {path or 'a folder'} names no lines", LINK_FORM)
    if page and not match["plain"]:
        message = f"the link to {path} lacks ?plain=1, without which GitHub shows no lines"
        return Problem(where, message, PAGE_FORM)
    first = int(lines[1])
    return Citation(path, first, int(lines[2] or first), symbol[1], where)


def _scan_sources(text: str, name: str, *, versioned: bool) -> Iterator[Found]:
    good = list(_SOURCE.finditer(text))
    for match in sorted([*good, *_attempts(text, good)], key=lambda m: m.start()):
        where = f"{name}:{text.count(chr(10), 0, match.start()) + 1}"
        if match.re is not _SOURCE:
            yield Problem(where, f"cannot read the citation {match[0]!r}", f"write {SOURCE_FORM}")
        elif match["ref"] != PIN and (versioned or match["ref"]):
            message = f"cites vLLM at {match['ref'] or 'no version'}; the course cites {PIN} only"
            yield Problem(where, message, f"write {SOURCE_FORM}")
        else:
            first = int(match["first"])
            last = int(match["last"] or first)
            for symbol in match["symbols"].replace("()", "").split(", "):
                yield Citation(match["path"], first, last, symbol, where)


def _attempts(text: str, good: list[re.Match[str]]) -> list[re.Match[str]]:
    """What looks like a `Source:` citation but overlaps none that could be read."""
    taken = [range(m.start(), m.end()) for m in good]
    return [
        m for m in _SOURCE_ATTEMPT.finditer(text) if not any(m.end() - 1 in span for span in taken)
    ]


def _scan_notebook(text: str, name: str) -> Iterator[Found]:
    for number, cell in enumerate(json.loads(text).get("cells", []), start=1):
        source = cell.get("source", "")
        body = source if isinstance(source, str) else "".join(source)
        suffix = ".py" if cell["cell_type"] == "code" else ".md"
        yield from scan_text(body, f"{name}:cell {number}", suffix)


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def _blank_urls(match: re.Match[str]) -> str:
    return _blank(match) if "://" in match[0] else match[0]


def phase_of(where: str, owners: dict[str, str]) -> str:
    """The phase slug that a citation belongs to; its top folder when it belongs to none."""
    file = where.split(":", 1)[0]
    parts = file.split("/")
    if parts[0] in ("phases", "solutions", "labs") and len(parts) > 2:
        return parts[1]
    return owners.get(file, parts[0])


def module_owners(project: Path) -> dict[str, str]:
    """Which phase owns which file: `{"mini_vllm/core/scheduler.py": "03-scheduler"}`."""
    return {
        phase.reference_file(module).relative_to(project).as_posix(): phase.slug
        for phase in Course(project).phases
        for module in phase.modules
    }
