"""Judge a learner's notebook answers without Jupyter: `python -m labkit.judge.notebook_judge ROOT
NN REPORT`.

Runs the setup, todo and check cells in one plain namespace, each with a time limit. Setup and check
cells come from the course's source, the answers from `labs/NN-slug/lab.ipynb`. Cells are found by
their task, so their order may change.
"""

from __future__ import annotations

import contextlib
import io
import json
import linecache
import os
import re
import sys
from pathlib import Path
from typing import Any

from labkit import notebook
from labkit.course import notebook_source, source
from labkit.course.manifest import Course, Phase
from labkit.course.remedies import remedy
from labkit.course.skeleton import is_todo
from labkit.inside import alarm
from labkit.inside.alarm import EndlessLoop, message_of, shorten


def answers(phase: Phase) -> dict[str, str]:
    """Task -> source of the learner's cell; tasks whose cell is gone are left out.

    Raises:
        FileNotFoundError: there is no lab.ipynb.
        ValueError: it is not a notebook.
    """
    text = ""
    try:
        text = (phase.labs / "lab.ipynb").read_text(encoding="utf-8-sig")
        document = json.loads(text)
        found = {}
        if not isinstance(document["cells"], list):
            raise TypeError("its `cells` are no list")
        for cell in document["cells"]:
            metadata = cell.get("metadata", {})
            if cell.get("cell_type") == "code" and "todo" in metadata.get("tags", []):
                found[metadata.get("task", "")] = "".join(cell["source"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        line = source.unresolved_merge(text)
        why = (
            f"line {line} holds an unresolved merge" if line else f"{type(error).__name__}: {error}"
        )
        raise ValueError(
            f"labs/{phase.slug}/lab.ipynb cannot be read as a notebook ({why});"
            f" `python -m labkit reset {phase.number} --notebook` restores it and keeps"
            " a backup"
        ) from None
    return found


def untouched(phase: Phase) -> list[dict[str, Any]]:
    """The records of a notebook in which no answer is begun, which nothing need run for; [] of
    another."""
    book = notebook_source.read(phase)
    blank = {c.task: notebook_source.student_source(c) for c in book.cells if c.tag == "todo"}
    try:
        if answers(phase) != blank:
            return []
    except (OSError, ValueError):  # no notebook: the judge says so
        return []
    return [
        {"task": task, "title": title, "outcome": "todo", "message": f"TODO {task}: {title}"}
        for task, title in book.tasks.items()
    ]


def judge(phase: Phase, solved: bool = False, at: Path | None = None) -> list[dict[str, Any]]:
    """One record a task: {"task", "title", "outcome": passed|failed|todo|missing|hang, "message",
    "line"}.

    Args:
        at: a file to hold the task whose cell runs, for the process that finds this one gone.
    """
    book = notebook_source.read(phase)
    if solved:
        given = {c.task: notebook_source.solved_source(c) for c in book.cells if c.tag == "todo"}
    else:
        given = answers(phase)
    space: dict[str, Any] = {"__name__": "__main__"}
    space |= {name: getattr(notebook, name) for name in ("check", "check_close", "check_that")}
    results: dict[str, dict[str, Any]] = {}
    for cell in book.cells:
        if cell.kind != "code" or cell.tag not in ("setup", "todo", "check"):
            continue
        text = given.get(cell.task) if cell.tag == "todo" else cell.source
        if text is None:
            results[cell.task] = {"outcome": "missing", "message": "its cell is gone"}
        elif cell.task not in results or results[cell.task]["outcome"] == "passed":
            name = f"lab.ipynb, cell {cell.task or 'setup'}"
            if at:
                at.write_text(cell.task, encoding="utf-8")
            found = run_cell(text, name, space, phase.test_seconds)
            if cell.task:
                results[cell.task] = found
            elif found["outcome"] != "passed":
                results |= {task: found for task in book.tasks}
    return [{"task": t, "title": book.tasks[t]} | results[t] for t in book.tasks]


def run_cell(text: str, name: str, space: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Execute one cell and say how it ended."""
    text = re.sub(r"^(\s*)[%!].*$", r"\1pass", text, flags=re.MULTILINE)
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    alarm.arm(seconds)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(text, name, "exec"), space)
    except EndlessLoop as error:
        line = _line(error, name)
        return {
            "outcome": "hang",
            "message": f"still running after {seconds:g} s of computing or sleeping",
            "line": line,
        }
    except NotImplementedError as error:
        said = message_of(error)
        if is_todo(said) or said.startswith("TODO"):
            return {"outcome": "todo", "message": said}
        return {"outcome": "failed", "message": shorten(f"NotImplementedError: {said}", 600)}
    except BaseException as error:
        kind = "" if isinstance(error, notebook.CheckFailed) else f"{type(error).__name__}: "
        text = error.msg if isinstance(error, SyntaxError) else message_of(error)
        said = shorten(f"{kind}{text}", 600)
        line = error.lineno if isinstance(error, SyntaxError) else _line(error, name)
        return {"outcome": "failed", "message": said, "line": line}
    finally:
        alarm.arm(0)
    return {"outcome": "passed", "message": ""}


def _line(error: BaseException, name: str) -> int | None:
    trace, line = error.__traceback__, None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == name:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def main(root: str, number: str, report: str) -> None:
    alarm.install()
    phase = Course(Path(root)).phase(number)
    solved = os.environ.get("LAB") == "reference"
    try:
        records = judge(phase, solved, Path(report).with_suffix(".at"))
    except (ValueError, OSError) as error:
        said = remedy(error) if isinstance(error, OSError) else str(error)
        about = {"task": "notebook", "title": "lab.ipynb"}
        records = [about | {"outcome": "failed", "message": said}]
    Path(report).write_text(json.dumps(records), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
    alarm.leave(0)
