"""How many hunts and change requests a phase has: what progress counts, without reading them.

A browser's tab knows their number and no more.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from labkit.course.manifest import Phase


def hunts_file(phase: Phase) -> Path:
    return phase.root / "tests" / "corpora" / "hunts" / f"{phase.slug}.toml"


def changes_file(phase: Phase) -> Path:
    return phase.folder / "changes.toml"


def hunts(phase: Phase) -> list[str]:
    """ "03.1", "03.2", …"""
    return _numbered(phase, hunts_file(phase), "hunts")


def changes(phase: Phase) -> list[str]:
    """ "03.1", "03.2", …"""
    return _numbered(phase, changes_file(phase), "changes")


def _numbered(phase: Phase, path: Path, table: str) -> list[str]:
    if not path.exists():
        return []
    entries = tomllib.loads(path.read_text(encoding="utf-8"))[table]
    return [f"{phase.number}.{number}" for number in range(1, len(entries) + 1)]
