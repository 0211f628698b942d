"""`upstream_notes/citations.lock`: what the cited lines were when they were last verified.

With it, `cite-check` runs without upstream's source: a citation passes when the lock knows its
file, its lines and its symbol. With the source present, the lock's hashes prove that the source is
the pinned one. The file is JSON with sorted keys, a line for each file of vLLM: a changed citation
changes one line of it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from labkit.citations.scan import Citation
from labkit.citations.symbols import SourceFile, Span, Upstream, digest
from labkit.course.files import entries_as_json, write_text
from labkit.course.root import PIN

LOCK = Path("upstream_notes") / "citations.lock"


@dataclass
class Region:
    """Cited lines: the hash of their text, and the symbols that they were verified to hold."""

    digest: str
    symbols: list[str] = field(default_factory=list)


@dataclass
class LockedFile:
    """One cited upstream file. `definitions` keeps where every name of the file is defined."""

    sha256: str
    regions: dict[str, Region] = field(default_factory=dict)
    definitions: dict[str, list[Span]] = field(default_factory=dict)


Lock = dict[str, LockedFile]


def read_lock(project: Path) -> Lock:
    """The lock of a project; empty when there is none yet."""
    path = project / LOCK
    if not path.exists():
        return {}
    data = json.loads(path.read_text("utf-8"))
    return {name: _read_file(entry) for name, entry in data["files"].items()}


def _read_file(entry: dict) -> LockedFile:
    regions = {lines: Region(r["digest"], r["symbols"]) for lines, r in entry["regions"].items()}
    spans = {name: [_span(text) for text in at.split()] for name, at in entry["names"].items()}
    return LockedFile(entry["sha256"], regions, spans)


def _span(text: str) -> Span:
    first, _, last = text.partition("-")
    return int(first), int(last)


def build_lock(citations: list[Citation], upstream: Upstream) -> Lock:
    """The lock for citations that have all been verified against `upstream`."""
    lock: Lock = {}
    for citation in sorted(citations, key=lambda c: (c.path, c.first, c.last, c.symbol)):
        file = upstream.file(citation.path)
        assert file is not None, f"{citation.path} was not verified"
        locked = lock.setdefault(citation.path, LockedFile(file.sha256, {}, file.definitions))
        region = locked.regions.setdefault(citation.region, _new_region(file, citation))
        if citation.symbol not in region.symbols:
            region.symbols.append(citation.symbol)
    return lock


def _new_region(file: SourceFile, citation: Citation) -> Region:
    return Region(digest(file.region(citation.first, citation.last)))


def write_lock(project: Path, lock: Lock) -> None:
    """Write the lock atomically."""
    write_text(project / LOCK, format_lock(lock))


def format_lock(lock: Lock) -> str:
    """The lock as text: one line for each file, with its regions and names."""
    files = {
        path: {
            "sha256": file.sha256,
            "regions": {
                lines: {"digest": region.digest, "symbols": region.symbols}
                for lines, region in file.regions.items()
            },
            "names": {
                name: " ".join(f"{first}-{last}" for first, last in spans)
                for name, spans in sorted(file.definitions.items())
            },
        }
        for path, file in sorted(lock.items())
    }
    return entries_as_json({"pin": PIN, "files": files})
