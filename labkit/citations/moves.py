"""Where a citation that no longer holds should point: found by its text, then by its name."""

from __future__ import annotations

import re

from labkit.citations.check import nearest_paths
from labkit.citations.lock import Lock
from labkit.citations.scan import Citation
from labkit.citations.symbols import SourceFile, Upstream


def propose(citation: Citation, upstream: Upstream, lock: Lock) -> list[Citation]:
    """Citations that would hold instead, best first; empty when nothing fits."""
    file = upstream.file(citation.path)
    if file is None:
        paths = nearest_paths(citation.path, upstream.paths)
        files = [found for path in paths if (found := upstream.file(path))]
    else:
        files = [file]
    proposals = [move for file in files for move in _within(citation, file, lock)]
    proposals = proposals or _elsewhere(citation, upstream)
    return [move for i, move in enumerate(proposals) if move not in proposals[:i]][:3]


def _within(citation: Citation, file: SourceFile, lock: Lock) -> list[Citation]:
    """By the locked hash of the lines; by the symbol's name; by what the lines hold now."""
    moves: list[Citation] = []
    locked = lock.get(file.path)
    region = locked.regions.get(citation.region) if locked else None
    if region:
        length = citation.last - citation.first + 1
        moves += [_at(citation, file, *span) for span in file.find(region.digest, length)]
    spans = file.resolve(citation.symbol)
    inside = [s for s in spans if s[0] <= citation.first and citation.last <= s[1]]
    moves += [_at(citation, file, *span) for span in spans if not inside]
    if inside:
        moves.append(_at(citation, file, citation.first, citation.last))
    if not moves and (holder := file.enclosing(citation.first, citation.last)):
        moves.append(_at(citation, file, citation.first, citation.last, holder))
    return moves


def _elsewhere(citation: Citation, upstream: Upstream) -> list[Citation]:
    """Files of the same top folder that define the symbol's last name."""
    name = citation.symbol.rpartition(".")[2]
    pattern = re.compile(rf"^\s*(?:async )?(?:def|class) {re.escape(name)}\b", re.MULTILINE)
    folder = "/".join(citation.path.split("/")[:2])
    files = [upstream.file(path) for path in upstream.paths if path.startswith(folder)]
    matching = [file for file in files if file and pattern.search(file.text)]
    return [_at(citation, f, *span) for f in matching for span in f.resolve(citation.symbol)]


def _at(
    citation: Citation, file: SourceFile, first: int, last: int, symbol: str | None = None
) -> Citation:
    return Citation(file.path, first, last, symbol or citation.symbol, citation.where)
