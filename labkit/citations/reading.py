"""Does the sentence say what the cited lines say? A person reads both, and the reading is recorded.

`cite-check` proves that a symbol stands where a citation points. Whether the sentence around it is
true no program can tell. So `cite-check --read 04` prints each citing sentence of phase 04 above
the lines that it cites, one screen each, and what was read is kept in
`upstream_notes/readings.json` as a hash of sentence and lines. When either changes, the hash is no
longer known, and `cite-check` lists the sentence among those to read.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from labkit.citations.lock import Lock
from labkit.citations.scan import _FENCE, Citation, _blank, scan_text
from labkit.citations.symbols import Upstream, digest
from labkit.course.files import write_text
from labkit.course.root import PIN

READINGS = Path("upstream_notes") / "readings.json"
PLACES = ("phases/**/*.md", "solutions/**/*.md", "upstream_notes/**/*.md", "docs/**/*.md", "*.md")
LEFT_OUT = "upstream_notes/drift/"
"""Written by `cite-drift`: names and lines, no sentences."""
SHOWN_LINES = 60
_BLOCK = re.compile(r"(?m)^(?=[|#>]|[-*] |\d+\. )|\n[ \t]*\n")
_SENTENCE = re.compile(r"(?<=[.?!])[\"')*_]*\s+(?=[A-Z\"'(*_`\[])")


@dataclass(frozen=True)
class Claim:
    """A sentence that cites upstream, and what follows it until the next one that does."""

    file: str
    line: int
    text: str
    citations: tuple[Citation, ...]

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"


def claims_of(project: Path) -> list[Claim]:
    """Every citing sentence of the chapters, walkthroughs and notes, in the order of the files."""
    files = sorted({path for place in PLACES for path in project.glob(place) if path.is_file()})
    names = [path.relative_to(project).as_posix() for path in files]
    kept = [name for name in names if not name.startswith(LEFT_OUT)]
    return [claim for name in kept for claim in claims_in(_read(project / name), name)]


def _read(path: Path) -> str:
    return path.read_text("utf-8")


def claims_in(text: str, file: str) -> Iterator[Claim]:
    """The citing sentences of one Markdown text. A table's row, like a list's item, is a block."""
    text = _FENCE.sub(_blank, text)
    for start, end in _spans(_BLOCK, 0, text):
        found: list[tuple[int, list[Citation]]] = []
        for first, last in _spans(_SENTENCE, start, text[:end]):
            cited = [c for c in scan_text(text[first:last], file) if isinstance(c, Citation)]
            if cited:
                found.append((first, cited))
        stops = [*(first for first, _ in found), end][1:]
        for (first, cited), stop in zip(found, stops, strict=True):
            line = text.count("\n", 0, first) + 1
            yield Claim(file, line, " ".join(text[first:stop].split()), tuple(cited))


def _spans(border: re.Pattern[str], start: int, text: str) -> Iterator[tuple[int, int]]:
    """The pieces of `text[start:]` between borders, without the white space around them."""
    cuts = [start, *(m.end() for m in border.finditer(text, start)), len(text)]
    for first, last in pairwise(cuts):
        piece = text[first:last]
        if piece.strip():
            yield first + len(piece) - len(piece.lstrip()), first + len(piece.rstrip())


def mark(claim: Claim, lock: Lock) -> str | None:
    """The hash of sentence and cited lines; None while the lock does not know the lines."""
    parts = [claim.text]
    for citation in claim.citations:
        region = lock[citation.path].regions.get(citation.region) if citation.path in lock else None
        if region is None:
            return None
        parts += [citation.path, citation.region, region.digest]
    return digest(parts)[:12]


def read_marks(project: Path) -> set[str]:
    """The hashes of all recorded readings."""
    path = project / READINGS
    if not path.exists():
        return set()
    return {known for marks in json.loads(_read(path))["read"].values() for known in marks}


def unread(project: Path, lock: Lock) -> list[Claim]:
    """Sentences that were not read since they, or the lines they cite, were written."""
    known = read_marks(project)
    return [claim for claim in claims_of(project) if mark(claim, lock) not in known]


def record(project: Path, lock: Lock, claims: list[Claim]) -> int:
    """Remember that these were read, and forget what no sentence has any more. Returns how many
    are known now."""
    known = read_marks(project) | {found for c in claims if (found := mark(c, lock))}
    files: dict[str, list[str]] = {}
    for claim in claims_of(project):
        found = mark(claim, lock)
        if found in known and found not in files.setdefault(claim.file, []):
            files[claim.file].append(found)
    kept = {name: sorted(marks) for name, marks in sorted(files.items()) if marks}
    write_text(project / READINGS, json.dumps({"pin": PIN, "read": kept}, indent=1) + "\n")
    return sum(map(len, kept.values()))


def wanted(claims: list[Claim], what: str) -> list[Claim]:
    """Those of a phase ("04"), of the maps ("notes"), or of a file or folder."""
    if re.fullmatch(r"\d\d", what):
        starts: tuple[str, ...] = (f"phases/{what}-", f"solutions/{what}-")
    else:
        starts = ("upstream_notes/",) if what == "notes" else (what,)
    return [claim for claim in claims if claim.file.startswith(starts)]


def screen(claim: Claim, upstream: Upstream, place: str = "") -> str:
    """One screen: where, the sentence, and below it the lines that it cites."""
    plain = re.sub(r"\]\([^)]*\)", "]", claim.text)
    parts = [f"── {claim.where} {place}".rstrip(), "", textwrap.fill(plain, 98), ""]
    for citation in claim.citations:
        file = upstream.file(citation.path)
        parts.append(f"   {citation.path} {citation.region} ({citation.symbol})")
        if file is None:
            parts.append("   is not in this source (a page comes with a clone, or with the sdist)")
            continue
        last = min(citation.last, citation.first + SHOWN_LINES - 1)
        for number in range(citation.first, min(last, len(file.lines)) + 1):
            parts.append(f"{number:6} │ {file.lines[number - 1].rstrip()}")
        if last < citation.last:
            parts.append(f"       … {citation.last - last} more lines")
        parts.append("")
    return "\n".join(parts)
