"""What every command shares: the course it works on, its lines on the screen.

Typer and Rich are imported where they are used: a browser's tab has neither, and its screen is
another one (`labkit.tab.driver`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any

from labkit.course import source
from labkit.course.files import printable, read_python
from labkit.course.manifest import Course, Exercise, Phase
from labkit.course.remedies import remedy
from labkit.course.root import find_root

if TYPE_CHECKING:
    from rich.console import Console

MARKS = {
    "passed": ("✓", "green"),
    "failed": ("✗", "red"),
    "waiting": ("…", "yellow"),
    "open": ("○", "dim"),
    "not run": ("-", "yellow"),
}
SHOWN_NAMES = 3


class Screen:
    """Writes lines; colours only where there is a terminal."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console

        self.console = console or Console(highlight=False, soft_wrap=True)

    def put(self, *parts: tuple[str, str]) -> None:
        """One line, made of (text, style)."""
        from rich.text import Text

        self.console.print(Text.assemble(*parts), soft_wrap=True)

    def line(self, text: str = "", style: str = "", indent: int = 0) -> None:
        for row in printable(text).split("\n"):
            self.put((" " * indent + row, style))

    def pair(
        self, name: str, value: str, style: str = "", indent: int = 8, width: int = 10
    ) -> None:
        self.put((" " * indent, ""), (f"{name:<{width}} ", "dim"), (printable(value), style))


def command(phase: Phase, verb: str, task: Exercise | None = None) -> str:
    """ "make hint-03"; of one task, not of the one that comes next: "make hint-03.2"."""
    return f"make {verb}-{task.id if task else phase.number}"


def some(names: Sequence[str], word: str = "and") -> str:
    """ "a", "a, b", "a, b, c and 8 more": at most three, so that a line stays a line."""
    if len(names) > SHOWN_NAMES:
        return f"{', '.join(names[:SHOWN_NAMES])} {word} {len(names) - SHOWN_NAMES} more"
    return ", ".join(names)


def where_to_edit(phase: Phase, exercise: Exercise, *functions: str) -> str:
    """ "labs/03-scheduler/scheduler.py:42 (Scheduler._clamp_new_tokens)"; of several functions,
    the line of the first and all their names. Default: the task's first function."""
    names = functions or exercise.functions[:1]
    shown = phase.lab_path(exercise.module)
    try:
        text = read_python(phase.lab_file(exercise.module))
        last = source.defined_again(text, names[0])
        line = f":{last or source.find(text, names[0], shown).line}"
    except (OSError, SyntaxError, source.SourceError):
        line = ""
    label = " or ".join(names) if len(names) <= SHOWN_NAMES else some(names, "or")
    return f"{shown}{line} ({label})"


def course() -> Course:
    """The course that the commands work on."""
    return Course(find_root())


TOLD = (source.SourceError, ValueError, SyntaxError, OSError)
"""What a command says in one line, instead of a traceback."""


def told(error: Exception) -> str:
    """A wrong argument or manifest, a file that is no Python, or a disk that refuses, and what to
    do."""
    if isinstance(error, SyntaxError):
        line = f":{error.lineno}" if error.lineno else ""  # none: it is about the whole file
        return f"{error.filename}{line}: {error.msg}; mend it first"
    return remedy(error) if isinstance(error, OSError) else str(error)


def polite(function: Callable[..., Any]) -> Callable[..., Any]:
    """Turn what can be told in one line into that line on stderr and exit code 2."""

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
        except TOLD as error:
            import typer

            print(told(error), file=sys.stderr)
            raise typer.Exit(2) from None

    return wrapped


def task_in(phase: str, task: str) -> tuple[str, str]:
    """Phase and task, where both may be typed as one, as every screen writes them:
    `make hint-03.2`, or nearly so: `hint-03-2`."""
    both = re.fullmatch(r"(\d+)[-_.](\d[\d.]*)?", phase)
    return (both[1], both[2] or "") if both and not task else (phase, task)


def ready_phase(name: str) -> Phase:
    """The phase, or what is coming in it and exit code 1."""
    phase = course().phase(name)
    if phase.ready:
        return phase
    out = Screen()
    out.line(f"Phase {phase.number}, {phase.title}, is not built yet.", "bold")
    out.line(phase.question)
    out.line("It will bring:")
    for item in phase.coming:
        out.line(f"- {item}", indent=2)
    import typer

    raise typer.Exit(1)
