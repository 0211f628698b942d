"""The README's table of phases says what the manifests say."""

from __future__ import annotations

import pytest

from labkit.manifest import Course, Phase, find_root

COURSE = Course(find_root())


def row(phase: Phase) -> str:
    if phase.status == "planned":
        return f"| {phase.slug} | {phase.question} | planned | |"
    link = f"[{phase.slug}](phases/{phase.slug}/00-guide.md)"
    return f"| {link} | {phase.question} | {phase.hours:g} | {phase.hardware} |"


@pytest.mark.parametrize("phase", COURSE.phases, ids=lambda phase: phase.number)
def test_the_table_of_phases_is_that_of_the_manifests(phase: Phase) -> None:
    lines = (COURSE.root / "README.md").read_text(encoding="utf-8").splitlines()
    assert row(phase) in lines
