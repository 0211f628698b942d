"""The plan of sessions in docs/instructors.md: one for each sitting of each phase."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from labkit.course import finish
from labkit.course.manifest import Course, Phase

LAB_HOURS = 0.75
"""Of the 90 minutes, those in which students write."""


@dataclass(frozen=True)
class Sitting:
    """A part of a mini-build that is done in one go: its title, "" where a phase has one part
    only, and the numbers of its tasks."""

    title: str
    tasks: tuple[int, ...]


def sittings(phase: Phase) -> list[Sitting]:
    """The sittings of a phase, from the headings of its mini-build."""
    text = (phase.folder / "02-mini-build.md").read_text(encoding="utf-8")
    found: list[tuple[str, list[int]]] = [("", [])]
    for title, task in re.findall(r"(?m)^# Sitting \d+: (.+)$|^## Task (\d+)\b", text):
        if title:
            found.append((title, []))
        else:
            found[-1][1].append(int(task))
    return [Sitting(title, tuple(tasks)) for title, tasks in found if tasks]


def table(course: Course) -> str:
    """The plan, as Markdown; a row in bold where a finish line is reached."""
    lines = ["| session | phase | sitting | tasks | hours at home |", "|---|---|---|---|---|"]
    lines += _rows(course)
    return "\n".join(lines)


def _rows(course: Course) -> Iterator[str]:
    number = 0
    ends = {line.phases(course)[-1].number: line.name for line in finish.LINES}
    for phase in course.ready:
        parts = sittings(phase)
        for part in parts:
            number += 1
            home = max(phase.hours / len(parts) - LAB_HOURS, 0)
            first, last = part.tasks[0], part.tasks[-1]
            span = f"{first}" if first == last else f"{first}–{last}"
            title = part.title or "all of it"
            yield f"| {number} | {phase.number} {phase.title} | {title} | {span} | {home:.1f} |"
        if name := ends.get(phase.number):
            yield f"| | **{name}** | after {number} sessions | | |"
