"""docs/glossary.md: every name that a guide explains, and the phase that explains it."""

from __future__ import annotations

import re
from pathlib import Path

from labkit.course.manifest import Course, Phase

PAGE = Path("docs", "glossary.md")


def names(phase: Phase) -> dict[str, str]:
    """Name -> meaning: the tables below "Names" in the phase's guide, without their heads.

    Raises:
        ValueError: the guide has no such table.
    """
    guide = (phase.folder / "00-guide.md").read_text(encoding="utf-8")
    section = re.search(r"(?ms)^## Names\n(.*?)(?=^## )", guide)
    rows = re.findall(r"(?m)^\| (.+?) \| (.+) \|$(?!\n\|-)", section[1]) if section else []
    if not rows:
        raise ValueError(f'{phase.slug}/00-guide.md has no table below "## Names"')
    return dict(rows)


def table(course: Course) -> str:
    """All names in alphabetical order; one that two phases explain stands in both their words."""
    rows = [
        (name, meaning, phase) for phase in course.ready for name, meaning in names(phase).items()
    ]
    rows.sort(key=lambda row: (row[0].strip("`").lower(), row[2].number))
    lines = [
        f"| {name} | {meaning} | [{phase.number}](../phases/{phase.slug}/00-guide.md#names) |"
        for name, meaning, phase in rows
    ]
    return "\n".join(["| name | meaning | phase |", "|---|---|---|", *lines])
