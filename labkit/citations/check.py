"""Holds citations to upstream's source, or to the lock where the source is missing."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from pathlib import Path

from labkit.citations.lock import Lock, build_lock, read_lock
from labkit.citations.scan import Citation, Problem, scan_project
from labkit.citations.symbols import SourceFile, Span, Upstream, is_page

GET_PAGE = (
    "wheels hold no pages: run `python -m labkit upstream --force --wheel vllm-0.22.1.tar.gz` with"
    " the release's sdist, then `python -m labkit cite-check --update`"
)
GET_SOURCE = "run `make upstream` to fetch the source, then `python -m labkit cite-check --update`"


@dataclass
class Report:
    """What a check found. `problems` is empty when every citation holds."""

    citations: list[Citation]
    problems: list[Problem]
    offline: bool
    unused: list[str] = field(default_factory=list)
    """Locked regions that nothing cites any more; harmless, `--update` drops them."""


def check_project(project: Path, upstream: Upstream | None) -> Report:
    """Check every citation of a project against the source and the lock."""
    found = scan_project(project)
    citations = [item for item in found if isinstance(item, Citation)]
    problems = [item for item in found if isinstance(item, Problem)]
    lock = read_lock(project)
    for citation in citations:
        source = upstream if upstream and upstream.brings(citation.path) else None
        verdict = check_citation(citation, source) if source else None
        verdict = verdict or check_lock(citation, lock, source)
        if verdict:
            problems.append(verdict)
    if upstream:
        problems += _changed_files(lock, upstream)
    return Report(citations, problems, upstream is None, _unused(lock, citations))


def updated_lock(
    citations: list[Citation], upstream: Upstream, old: Lock | None = None
) -> tuple[Lock, list[Problem]]:
    """A new lock of the citations that hold, and the problems of those that do not.

    Args:
        old: the lock so far; it keeps what it knows of pages that this source does not bring.
    """
    here = [citation for citation in citations if upstream.brings(citation.path)]
    verdicts = [(citation, check_citation(citation, upstream)) for citation in here]
    good = [citation for citation, problem in verdicts if problem is None]
    away = {citation.path for citation in citations} - {citation.path for citation in here}
    kept = {path: locked for path, locked in (old or {}).items() if path in away}
    return build_lock(good, upstream) | kept, [problem for _, problem in verdicts if problem]


def check_citation(citation: Citation, upstream: Upstream) -> Problem | None:
    """Does the source hold the symbol at these lines? Returns the problem, or None."""
    file = upstream.file(citation.path)
    if file is None:
        near = nearest_paths(citation.path, upstream.paths)
        hint = f"did you mean {' or '.join(near)}?" if near else "no upstream file has such a name"
        return Problem(citation.where, f"there is no upstream file {citation.path}", hint)
    if not 1 <= citation.first <= citation.last <= len(file.lines):
        message = f"lines {citation.region} are not in {citation.path}"
        return Problem(citation.where, message, f"that file has {len(file.lines)} lines")
    if holds(file, citation):
        return None
    return _misplaced(citation, file)


def holds(file: SourceFile, citation: Citation) -> bool:
    """True when the lines lie inside the symbol's definition, hold all of it, or use the symbol."""
    first, last = citation.first, citation.last
    spans = file.resolve(citation.symbol)
    inside = any(start <= first and last <= end for start, end in spans)
    around = any(first <= start and end <= last for start, end in spans)
    name = citation.symbol.rpartition(".")[2]
    return inside or around or any(first <= line <= last for line in file.uses(name))


def _misplaced(citation: Citation, file: SourceFile) -> Problem:
    message = f"`{citation.symbol}` is not at lines {citation.region} of {citation.path}"
    spans = file.resolve(citation.symbol)
    used = file.uses(citation.symbol.rpartition(".")[2])
    if spans:
        hint = f"it is defined at {_shown(spans)}"
    elif used:
        hint = f"it is used at {_shown([(line, line) for line in used])}"
    else:
        message = f"{citation.path} has no `{citation.symbol}`"
        near = difflib.get_close_matches(citation.symbol, file.definitions, 2, 0.5)
        hint = f"did you mean {' or '.join(f'`{name}`' for name in near)}?" if near else ""
    holder = file.enclosing(citation.first, citation.last)
    if holder:
        separator = "; " if hint else ""
        hint += f"{separator}lines {citation.region} lie in `{holder}`"
    return Problem(citation.where, message, hint)


def _shown(spans: list[Span], limit: int = 4) -> str:
    shown = [f"{a}" if a == b else f"{a}-{b}" for a, b in spans[:limit]]
    more = f" and {len(spans) - limit} more" if len(spans) > limit else ""
    plural = "lines" if len(spans) > 1 or spans[0][0] != spans[0][1] else "line"
    return f"{plural} {', '.join(shown)}{more}"


def check_lock(citation: Citation, lock: Lock, upstream: Upstream | None) -> Problem | None:
    """Is this citation in the lock? Without the source, the lock is all there is to ask."""
    locked = lock.get(citation.path)
    region = locked.regions.get(citation.region) if locked else None
    if region and citation.symbol in region.symbols:
        return None
    if upstream is not None:
        message = "the citation holds, but citations.lock does not know it"
        return Problem(citation.where, message, "run `python -m labkit cite-check --update`")
    claim = f"`{citation.symbol}` at {citation.path}#L{citation.first}-L{citation.last}"
    hint = GET_PAGE if is_page(citation.path) else GET_SOURCE
    if locked is None:
        near = nearest_paths(citation.path, sorted(lock))
        hint = f"did you mean {near[0]}? Else {hint}" if near else hint
    elif citation.symbol in locked.definitions:
        spans = _shown(locked.definitions[citation.symbol])
        hint = f"it is defined at {spans}; for other lines {hint}"
    elif near := difflib.get_close_matches(citation.symbol, locked.definitions, 1, 0.5):
        hint = f"did you mean `{near[0]}`? Else {hint}"
    return Problem(citation.where, f"citations.lock does not know {claim}", hint)


def _changed_files(lock: Lock, upstream: Upstream) -> list[Problem]:
    """Locked files whose text is not what it was: the source is not the pinned release."""
    problems = []
    for path, locked in lock.items():
        file = upstream.file(path)
        if file is not None and file.sha256 != locked.sha256:
            message = f"{path} below {upstream.root.name} is not the file that was locked"
            hint = "run `make upstream` again; after moving the pin, `cite-check --fix`"
            problems.append(Problem("upstream_notes/citations.lock", message, hint))
    return problems


def _unused(lock: Lock, citations: list[Citation]) -> list[str]:
    cited = {(c.path, c.region) for c in citations}
    return [
        f"{path}#{lines}"
        for path, file in lock.items()
        for lines in file.regions
        if (path, lines) not in cited
    ]


def nearest_paths(path: str, known: list[str]) -> list[str]:
    """Existing paths that look like `path`: the same file name elsewhere, or similar spelling."""
    name = path.rpartition("/")[2]
    same_name = [other for other in known if other.rpartition("/")[2] == name]
    pool = same_name or known
    return difflib.get_close_matches(path, pool, 2, 0.6)
