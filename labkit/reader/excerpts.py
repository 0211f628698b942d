"""The parts of upstream that a phase cites: the lines, what surrounds them, where they belong."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from labkit.citations.scan import Citation
from labkit.citations.symbols import SourceFile, Upstream

CONTEXT = 12
"""Lines shown before and after a cited region."""


@dataclass(frozen=True)
class Place:
    """One cited region: its number in the page, and the definitions around it."""

    citation: Citation
    number: int
    owners: tuple[tuple[str, int], ...] = ()
    """Enclosing classes and functions, outermost first: (the line that opens it, its number)."""


@dataclass
class Excerpt:
    """One upstream file, as far as the page shows it."""

    path: str
    number: int
    source: SourceFile | None
    places: list[Place] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.path.removeprefix("vllm/")

    def shown_lines(self) -> list[int]:
        """Numbers of the lines to show: regions, their context, lines that open their owners."""
        if self.source is None:
            return []
        last = len(self.source.lines)
        shown: set[int] = set()
        for place in self.places:
            first, end = place.citation.first - CONTEXT, place.citation.last + CONTEXT
            shown.update(range(max(1, first), min(last, end) + 1))
            shown.update(line for _, line in place.owners)
        return sorted(shown)


def collect(citations: list[Citation], upstream: Upstream | None) -> list[Excerpt]:
    """Excerpts for citations in the order in which files are first cited; equal regions once."""
    excerpts: dict[str, Excerpt] = {}
    seen: set[tuple[str, str, str]] = set()
    per_file: defaultdict[str, int] = defaultdict(int)
    for citation in citations:
        key = (citation.path, citation.region, citation.symbol)
        if key in seen:
            continue
        seen.add(key)
        if citation.path not in excerpts:
            source = upstream.file(citation.path) if upstream else None
            excerpts[citation.path] = Excerpt(citation.path, len(excerpts) + 1, source)
        excerpt = excerpts[citation.path]
        per_file[citation.path] += 1
        owners = _owners(excerpt.source, citation) if excerpt.source else ()
        excerpt.places.append(Place(citation, per_file[citation.path], owners))
    return list(excerpts.values())


def _owners(source: SourceFile, citation: Citation) -> tuple[tuple[str, int], ...]:
    """The `class` and `def` lines above the region whose bodies hold it."""
    holders = [
        (start, end)
        for spans in source.definitions.values()
        for start, end in spans
        if start <= citation.first and citation.last <= end and end > start
    ]
    opened = [(_opening(source, start, end)) for start, end in sorted(holders)]
    return tuple((source.lines[line - 1].strip(), line) for line in opened if line)


def _opening(source: SourceFile, start: int, end: int) -> int | None:
    """The line of `def` or `class` in a span that may begin with comments and decorators."""
    for number in range(start, end + 1):
        if source.lines[number - 1].lstrip().startswith(("def ", "class ", "async def ")):
            return number
    return None
