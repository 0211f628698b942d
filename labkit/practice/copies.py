"""What hunts and change requests share: a copy of a module that the learner works on, and what the
course remembers of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Protocol, TypeVar

import typer

from labkit.course.console import Screen, command, some
from labkit.course.files import read_as_utf8
from labkit.course.manifest import Course, ManifestError, Phase
from labkit.course.state import State


class Named(Protocol):
    @property
    def id(self) -> str: ...


Item = TypeVar("Item", bound=Named)


def find(course: Course, name: str, load: Callable[[Phase], Iterable[Item]], what: str) -> Item:
    """The `what` ("hunt", "change") called "03.2".

    Raises:
        ManifestError: there is none; the message lists those of the phase.
    """
    phase = course.phase(name.partition(".")[0])
    items = {item.id: item for item in load(phase)}
    wanted = f"{phase.number}.{name.partition('.')[2]}"
    if wanted not in items:
        known = ", ".join(items) or "none yet"
        raise ManifestError(f"there is no {what} {name!r}; those of phase {phase.number}: {known}")
    return items[wanted]


def own_text(phase: Phase, module: str) -> str | None:
    """The learner's own module, if all of its tasks have passed."""
    passed = State(phase.root).standing(phase)
    mine = phase.lab_file(module)
    if mine.exists() and all(task.id in passed for task in phase.of_module(module)):
        return read_as_utf8(mine)
    return None


def may_open(out: Screen, phase: Phase, module: str, again: str, yes: bool) -> bool:
    """Whether to write a copy of a module. Tasks of it that are not green yet stand in the copy as
    the reference solves them, so this is said, and asked where there is a terminal.

    Args:
        again: the command that opens it without a question.
        yes: do not ask.
    """
    passed = State(phase.root).standing(phase)
    left = [task.id for task in phase.of_module(module) if task.id not in passed]
    if not left or yes:
        return True
    file = phase.lab_path(module)
    out.line(f"The copy of {file} holds the solution of {some(left)}: not green yet.", "yellow")
    if sys.stdin.isatty() and typer.confirm("Open it all the same?"):
        return True
    out.line(f"not opened; {command(phase, 'lab')} first, or {again} opens it", "dim")
    return False


def recall(table: str, phase: Phase, name: str) -> dict[str, Any]:
    """What `.labkit/state.json` says of one: {"begun": when, "solved": when, …}."""
    return dict(State(phase.root).get(table, name) or {})


def note(table: str, phase: Phase, name: str, **values: Any) -> None:
    """Add to what it says of one."""
    State(phase.root).put(table, name, recall(table, phase, name) | values)


def now() -> str:
    return datetime.now().isoformat(timespec="seconds")
