"""The commands `cite-check` and `cite-drift`."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from labkit.citations.check import GET_SOURCE, Report, check_project, updated_lock
from labkit.citations.drift import (
    DriftError,
    by_phase,
    fetch_release,
    load_reading,
    report,
    version_of,
)
from labkit.citations.lock import LOCK, read_lock, write_lock
from labkit.citations.moves import propose
from labkit.citations.reading import claims_of, record, screen, unread, wanted
from labkit.citations.scan import Citation, Problem, module_owners, phase_of, scan_project
from labkit.citations.symbols import Upstream
from labkit.course.files import write_text
from labkit.course.root import UPSTREAM, UPSTREAM_VARIABLE, find_root, upstream_root


def main(argv: list[str]) -> int:
    """Verify that every cited upstream line holds the symbol that the citation names."""
    options = _check_options(argv)
    project = options.project or find_root()
    root = upstream_root(project, options.source)
    upstream = Upstream(root) if root else None
    if (options.fix or options.update or options.read) and upstream is None:
        print(f"--fix, --update and --read need upstream's source, not here: {GET_SOURCE}")
        return 2
    if options.update and upstream:
        _update(project, upstream)
    if options.read and upstream:
        return _read(project, upstream, options.read, options.all, options.record)
    found = check_project(project, upstream)
    for problem in found.problems:
        print(problem)
        if options.fix and upstream:
            _print_proposals(problem, found, project, upstream)
    print(_summary(found))
    print(_to_read(project))
    return 1 if found.problems else 0


def _check_options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("labkit cite-check", description=main.__doc__)
    parser.add_argument("--fix", action="store_true", help="propose where a citation should point")
    parser.add_argument("--update", action="store_true", help=f"rewrite {LOCK.as_posix()}")
    parser.add_argument(
        "--read",
        metavar="NN",
        help='each citing sentence of a phase, of "notes" or of a path above the lines it cites',
    )
    parser.add_argument("--all", action="store_true", help="with --read: those read before, too")
    parser.add_argument("--record", action="store_true", help="with --read: all shown were read")
    source_help = f"folder with upstream's vllm/ (default: ${UPSTREAM_VARIABLE} or {UPSTREAM})"
    parser.add_argument("--source", type=Path, help=source_help)
    parser.add_argument("--project", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def _update(project: Path, upstream: Upstream) -> None:
    citations = [item for item in scan_project(project) if isinstance(item, Citation)]
    lock, _ = updated_lock(citations, upstream, read_lock(project))
    write_lock(project, lock)
    regions = sum(len(file.regions) for file in lock.values())
    print(f"wrote {LOCK.as_posix()}: {regions} regions of {len(lock)} files")


def _read(project: Path, upstream: Upstream, what: str, everything: bool, take: bool) -> int:
    """Show the sentences one by one; at a terminal, ask after each whether it is true."""
    lock = read_lock(project)
    claims = wanted(claims_of(project) if everything else unread(project, lock), what)
    read = []
    for number, claim in enumerate(claims, 1):
        print(screen(claim, upstream, f"({number} of {len(claims)})"))
        if take:
            read.append(claim)
        elif sys.stdin.isatty():
            answer = input("Enter: true.  n: not true, or not now.  q: stop here.  ").strip()
            if answer == "q":
                break
            read += [] if answer else [claim]
    if read:
        known = record(project, lock, read)
        print(f"recorded {len(read)} readings; {known} sentences of the course are read")
    elif not claims:
        print(f"every citing sentence of {what} was read since it last changed")
    return 0


def _to_read(project: Path) -> str:
    """How many citing sentences wait for a reader, phase by phase."""
    waiting = unread(project, read_lock(project))
    if not waiting:
        return "every citing sentence was read since it last changed"
    places = Counter(phase_of(claim.where, {}) for claim in waiting)
    shown = ", ".join(f"{name} {count}" for name, count in sorted(places.items()))
    return (
        f"{len(waiting)} citing sentences are new, or changed since they were read ({shown}): "
        "cite-check --read NN, or --read notes"
    )


def _print_proposals(problem: Problem, found: Report, project: Path, upstream: Upstream) -> None:
    lock = read_lock(project)
    for citation in found.citations:
        if citation.where == problem.where:
            for move in propose(citation, upstream, lock):
                print(f"    --fix: [`{move.symbol}`]({move.url})")


def _summary(found: Report) -> str:
    places = len({(c.path, c.region) for c in found.citations})
    against = "citations.lock only (no source here)" if found.offline else "the source"
    counted = f"{len(found.citations)} citations of {places} places, checked against {against}"
    unused = f"; {len(found.unused)} locked places are no longer cited" if found.unused else ""
    return f"{counted}: {len(found.problems) or 'no'} problems{unused}"


def drift(argv: list[str]) -> int:
    """Report, phase by phase, which cited lines another upstream release changed."""
    options = _drift_options(argv)
    project = options.project or find_root()
    try:
        source = options.source or fetch_release(options.to, project / UPSTREAM.parent)
    except DriftError as error:
        print(error)
        return 2
    citations = [item for item in scan_project(project) if isinstance(item, Citation)]
    root = upstream_root(project, None)
    pinned = Upstream(root) if root else None
    groups = by_phase(
        citations, read_lock(project), Upstream(source), module_owners(project), pinned
    )
    version = options.to or version_of(source)
    text = report(groups, version, load_reading(project, version))
    print(text)
    if options.out:
        write_text(options.out, text)
    return 0


def _drift_options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("labkit cite-drift", description=drift.__doc__)
    other = parser.add_mutually_exclusive_group(required=True)
    other.add_argument("--to", metavar="VERSION", help="release to compare with, such as 0.32.0")
    other.add_argument("--source", type=Path, help="or: a folder that holds its vllm/")
    parser.add_argument("--out", type=Path, help="write the report to this file, too")
    parser.add_argument("--project", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(argv)
