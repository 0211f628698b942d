"""What the course remembers of a learner in two places becomes one: a machine takes in what a
browser's tab has exported, and so does another tab."""

from __future__ import annotations

from typing import Any

from labkit.course.manifest import Course, Phase
from labkit.course.state import State
from labkit.practice import quiz

RECORDS = ("judged", "failing", "failed", "counts", "begin")
"""Of a phase, the tables with a row for each task."""


def remember(known: Course, mine: State, theirs: dict[str, Any]) -> None:
    """Take in which tasks had passed, which hints were seen, and how often each kind of question
    was answered. A phase with a notebook is not green by that: the tab judges no notebook.

    Args:
        mine: is written.
        theirs: what stands in another `.labkit/state.json`; what is damaged in it is left out.
    """
    for task, shown in _table(theirs, "hints").items():
        if isinstance(shown, int) and shown > mine.get("hints", task, 0):
            mine.put("hints", task, shown)
    for kind, record in _table(theirs, quiz.TABLE).items():
        if quiz.is_record(record) and _answers(record) > _answers(mine.get(quiz.TABLE, kind)):
            mine.put(quiz.TABLE, kind, record)
    records = _table(theirs, "phases")
    for phase in known.ready:
        if isinstance(record := records.get(phase.slug), dict):
            have = mine.get("phases", phase.slug) or {}
            mine.put("phases", phase.slug, _joined(phase, have, record))


def _joined(phase: Phase, have: dict[str, Any], record: dict[str, Any]) -> dict[str, Any]:
    """Where both have judged a task, `record` is newer."""
    about = {name: _table(have, name) | _table(record, name) for name in RECORDS}
    passed = {*have.get("passed", []), *_names(record.get("passed"))}
    passed -= set(_table(record, "failed"))
    unknown = ["-", "-"] if phase.notebook else [0, 0]
    done, questions = notebook = have.get("notebook", unknown)
    return have | about | {
        "passed": sorted(passed),
        "public": _public(phase, about["counts"]),
        "notebook": notebook,
        "green": len(passed) == len(phase.exercises) and done == questions != "-",
        "when": str(record.get("when", have.get("when", ""))),
    }  # fmt: skip


def _public(phase: Phase, counts: dict[str, Any]) -> list[Any]:
    """Tests that passed, and all of them; unknown where a task was not judged."""
    rows = [counts.get(task.id) for task in phase.exercises]
    if not all(isinstance(row, list) and len(row) == 2 for row in rows):
        return ["-", "-"]
    return [sum(row[n] for row in rows if row) for n in (0, 1)]


def _answers(record: dict[str, Any] | None) -> int:
    return record["asked"] + record["skipped"] if record else 0


def _names(found: object) -> list[str]:
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def _table(record: dict[str, Any], name: str) -> dict[str, Any]:
    found = record.get(name)
    return found if isinstance(found, dict) else {}
