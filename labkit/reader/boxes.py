"""Below each task of a chapter a box: an editor where the task runs in the page, else a line that
says where it does. `labkit.tab.site` writes what runs it beside the pages.
"""

from __future__ import annotations

import html
import json
import re
from dataclasses import dataclass

from labkit.course import here
from labkit.course.manifest import Exercise, Phase

HEADING = re.compile(r'<h([1-6]) id="([^"]*)">')


@dataclass(frozen=True)
class Tab:
    """What the pages need to know of the files beside them.

    Attributes:
        bytes: what the worker loads before it can judge, unpacked by the browser.
        asked: the phases of which there are questions.
        traced: those whose modules take part in a trace, so that a run can be stepped through.
        raced: those whose schedulers can race in the arena.
    """

    bytes: int
    asked: frozenset[str] = frozenset()
    traced: frozenset[str] = frozenset()
    raced: frozenset[str] = frozenset()


def with_boxes(phase: Phase, chapter: str, prefix: str, text: str) -> str:
    """A chapter's HTML with a box at the end of each task's section.

    Args:
        chapter: the file's name, such as "02-mini-build.md".
        prefix: what the anchors of the chapter begin with.
    """
    headings = [(m.start(), int(m[1]), m[2]) for m in HEADING.finditer(text)]
    places: list[tuple[int, str]] = []
    for task in phase.exercises:
        file, _, anchor = task.read.partition("#")
        if file != chapter:
            continue
        end = _end_of_section(headings, f"{prefix}--{anchor}", len(text))
        if end is not None:
            places.append((end, box(phase, task)))
    for end, made in reversed(places):
        text = text[:end] + made + text[end:]
    return text


def _end_of_section(headings: list[tuple[int, int, str]], anchor: str, end: int) -> int | None:
    """Where the section of an anchor ends; "task-1" also names "task-1-two-waiting-lines"."""
    for number, (_, level, identity) in enumerate(headings):
        if identity == anchor or identity.startswith(f"{anchor}-"):
            later = (at for at, other, _ in headings[number + 1 :] if other <= level)
            return next(later, end)
    return None


def box(phase: Phase, task: Exercise) -> str:
    """What stands below one task. Without a script, or from a file, it says what to do."""
    if task.id not in here.tasks().get(phase.slug, ()):
        return (
            f'<p class="not-here">{task.id} runs on your machine:'
            f" <code>make lab-{phase.number}</code>.</p>\n"
        )
    about = {
        "task": task.id,
        "file": phase.lab_path(task.module),
        "functions": " ".join(task.functions),
    }
    data = "".join(f' data-{key}="{html.escape(value)}"' for key, value in about.items())
    return (
        f'<section class="try" aria-label="Try {task.id} here"{data}>'
        f"<p>{task.id} runs here, in the page, once the book is served:"
        " <code>python -m labkit book --serve</code>.</p></section>\n"
    )


def facts_of(phase: Phase, tab: Tab) -> str:
    """What `tab.js` needs to know of a page, as JSON; "" where nothing of it runs in the tab."""
    if phase.slug not in here.tasks() and phase.slug not in tab.asked:
        return ""
    about = {
        "phase": phase.slug,
        "number": phase.number,
        "files": [phase.lab_path(module) for module in phase.modules],
        "bytes": tab.bytes,
        "traced": phase.slug in tab.traced,
        "raced": phase.slug in tab.raced,
    }
    return json.dumps(about)
