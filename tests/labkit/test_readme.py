"""What README, CONTRIBUTING, the guides and docs/ say is there, is there."""

from __future__ import annotations

import json
import lzma
import re
from pathlib import Path
from typing import Any

import pytest

from labkit.cli import COMMANDS
from labkit.course import source
from labkit.course.manifest import Course, Phase
from labkit.course.root import ROOT

COURSE = Course(ROOT)
GUIDES = [phase.folder / "00-guide.md" for phase in COURSE.ready]
TOP = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted(ROOT.glob("docs/*.md")),
]
DOCUMENTS = [*TOP, *GUIDES, *sorted(ROOT.glob("upstream_notes/*.md"))]
"""`labkit.quality.chapters` and test_reader.py look into the chapters more closely."""
README, CONTRIBUTING, SPEED = (
    (ROOT / name).read_text(encoding="utf-8")
    for name in ("README.md", "CONTRIBUTING.md", "docs/speed.md")
)
each_document = pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix()
)


def row(phase: Phase) -> str:
    if phase.status == "planned":
        return f"| {phase.slug} | {phase.question} | planned | |"
    link = f"[{phase.slug}](phases/{phase.slug}/00-guide.md)"
    return f"| {link} | {phase.question} | {phase.hours:g} | {phase.hardware} |"


@pytest.mark.parametrize("phase", COURSE.phases, ids=lambda phase: phase.number)
def test_the_table_of_phases_is_that_of_the_manifests(phase: Phase) -> None:
    assert row(phase) in README.splitlines()


@pytest.mark.parametrize("phase", COURSE.phases, ids=lambda phase: phase.number)
def test_the_tour_ends_with_the_phases_of_today(phase: Phase) -> None:
    """Else `python -m labkit docs tour` records it anew."""
    tour = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
    [line] = re.findall(rf"(?m)^[ ✓] {phase.number} {re.escape(phase.title)} .*", tour)
    points = sum(exercise.points for exercise in phase.exercises)
    assert ("not built yet" if phase.status == "planned" else f"/{points:3} points") in line


# ---------------------------------------------------------------- links and commands
def anchors(document: Path) -> set[str]:
    """The headings of a page of Markdown, as GitHub makes anchors of them."""
    headings = re.findall(r"(?m)^#+ (.+)$", document.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in headings}


@each_document
def test_every_link_leads_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@each_document
def test_every_command_exists(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"(?m)^([a-z-]+(?:-%)?):(?!=)", makefile))
    called = re.findall(r"(?m)(?:^|`|\$ )(?:LAB=\w+ )?make ([a-z-]+(?:\d\d|NN)?)", text)
    words = {"maintain-check": "maintain-%"}  # a word that this pattern knows beside numbers
    named = {words.get(target, re.sub(r"-(\d\d|NN)$", "-%", target)) for target in called}
    assert named <= targets
    assert set(re.findall(r"python3? -m labkit ([a-z][\w-]*)", text)) <= set(COMMANDS)


# ---------------------------------------------------------------- figures
def saved(name: str) -> Any:
    path = ROOT / "benchmarks" / "results" / name
    return json.loads(path.read_text(encoding="utf-8"))["results"]


def test_the_scheduler_figures_are_those_that_were_saved() -> None:
    steps: dict[str, list[float]] = {"mini_vllm": [], "vllm": []}
    for result in saved("scheduler.json"):
        steps[result["engine"]].append(result["step_us"])
    ratios = [theirs / ours for ours, theirs in zip(*steps.values(), strict=True)]
    assert f"takes {min(ratios):.1f} to {max(ratios):.1f} times as long as ours" in SPEED


def test_the_number_of_golden_traces_is_right() -> None:
    """Each file has one line of facts about the recording in front."""
    files = list((ROOT / "tests" / "conformance" / "golden").glob("*.jsonl.xz"))
    traces = sum(lzma.decompress(file.read_bytes()).count(b"\n") - 1 for file in files)
    assert f"- {traces} recorded traces" in CONTRIBUTING


@pytest.mark.parametrize("phase", COURSE.ready, ids=lambda phase: phase.number)
def test_a_guide_says_how_much_there_is_to_write(phase: Phase) -> None:
    """The reference's lines, without blank ones and comments; the guide rounds them."""
    lines = 0
    for module in phase.modules:
        text = phase.reference_file(module).read_text(encoding="utf-8")
        functions = source.functions(text)
        for hole in phase.holes(module):
            body = source.body_text(text, functions[hole])
            lines += len(re.findall(r"(?m)^ *[^\s#]", body))
    guide = (phase.folder / "00-guide.md").read_text(encoding="utf-8")
    [said] = re.findall(r"\*\*You write:\*\* about (\d+) lines", guide)
    assert abs(int(said) - lines) <= 5, f"the reference has {lines}"
