"""One tagged source, two notebooks: the student's with TODO cells, and the solved one.

The source is a Python file in Jupytext's percent format (`phases/NN-slug/notebook.py`), so Jupyter
opens it as well. What the tags and the `SOLUTION` marks mean is written in CONTRIBUTING.
"""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass, field, replace
from typing import Any

from labkit.course.manifest import ManifestError, Phase

TAGS = ("setup", "todo", "check", "predict")
_OPTION = re.compile(r'(\w+)=("[^"]*"|\[[^\]]*\])')
_REGION = re.compile(r"^( *)# BEGIN SOLUTION\n(.*?)^ *# END SOLUTION\n?", re.MULTILINE | re.DOTALL)
_LINE = re.compile(r"^( *)(?P<code>\S.*?) *# SOLUTION(?:: (?P<instead>.*))?$", re.MULTILINE)


class NotebookError(ManifestError):
    """A notebook source that cannot be turned into notebooks; the message names the file and the
    cell's line."""


@dataclass(frozen=True)
class Cell:
    """One cell; `tag` is "" for plain ones, `task` is "N03.1" or "P03.1" for those that have
    one; `why` explains what a prediction is compared with."""

    kind: str
    source: str
    line: int
    tag: str = ""
    task: str = ""
    title: str = ""
    id: str = ""
    why: str = ""


@dataclass(frozen=True)
class Notebook:
    cells: tuple[Cell, ...]
    tasks: dict[str, str] = field(default_factory=dict)
    """TODO tasks in order -> title."""


def read(phase: Phase) -> Notebook:
    """Parse and check a phase's notebook source.

    Raises:
        NotebookError: unknown tag, TODO without task or check, solution outside a TODO cell.
    """
    path = phase.notebook_source
    if path is None:
        return Notebook(())
    shown = path.relative_to(phase.root).as_posix()
    if not path.exists():
        raise NotebookError(
            f"{shown} does not exist; phases/{phase.slug}/phase.toml names it as notebook"
        )
    cells = _number(_split(path.read_text(encoding="utf-8"), shown, phase.number))
    for cell in cells:
        _check_cell(cell, shown)
    tasks = {cell.task: cell.title or cell.task for cell in cells if cell.tag == "todo"}
    checks = [cell.task for cell in cells if cell.tag == "check"]
    for task in sorted(set(tasks) ^ set(checks)):
        missing = "check" if task in tasks else "todo"
        raise NotebookError(f"{shown}: task {task} has no {missing} cell")
    if len(checks) != len(set(checks)):
        raise NotebookError(f"{shown}: a task has two check cells; give each task exactly one")
    return Notebook(cells, tasks)


def reason(book: Notebook, task: str) -> str:
    """Why a prediction comes out as it does, in Markdown: what its cell says, or else the first
    paragraph below the cell that scores it; "" if there is none.

    Args:
        task: "P03.1".
    """
    given = next((cell.why for cell in book.cells if cell.task == task and cell.why), "")
    call = f'score("P{task.rpartition(".")[2]}"'
    cells = iter(book.cells)
    next((cell for cell in cells if call in cell.source), None)
    after = (cell.source for cell in cells if cell.kind == "markdown")
    paragraph = next(after, "").strip().partition("\n\n")[0]
    return given or ("" if paragraph.startswith("#") else paragraph.replace("\n", " "))


def experiments(phase: Phase) -> dict[str, str]:
    """The given cells below a prediction, down to the one that scores it: text -> task, "P03.1".
    They show what is to be predicted."""
    found, task = dict[str, str](), ""
    for cell in read(phase).cells:
        if cell.tag == "predict":
            task = cell.task
        elif task and cell.kind == "code" and not cell.tag:
            found[cell.source.strip()] = task
            if f'score("P{task.rpartition(".")[2]}"' in cell.source:
                task = ""
    return found


def _split(text: str, shown: str, number: str) -> list[Cell]:
    cells: list[Cell] = []
    parts = re.split(r"^# %%(.*)\n", text + "\n", flags=re.MULTILINE)
    line = parts[0].count("\n") + 1
    for header, body in zip(parts[1::2], parts[2::2], strict=True):
        options: dict[str, Any] = {k: json.loads(v) for k, v in _OPTION.findall(header)}
        kind = "markdown" if "[markdown]" in header else "code"
        source = body.strip("\n")
        if kind == "markdown":
            source = "\n".join(re.sub(r"^# ?", "", row) for row in source.split("\n"))
        tags = options.get("tags", [])
        if len(tags) > 1 or set(tags) - set(TAGS):
            raise NotebookError(
                f"{shown}:{line}: tags are {tags}; give at most one of {', '.join(TAGS)}"
            )
        task = options.get("task", "")
        if task and not re.fullmatch(r"[NP]\d+", task):
            raise NotebookError(f"{shown}:{line}: task is {task!r}; it must look like 'N1' or 'P1'")
        full = f"{task[0]}{number}.{task[1:]}" if task else ""
        title, why = options.get("title", ""), options.get("why", "")
        cells.append(Cell(kind, source, line, "".join(tags), full, title, why=why))
        line += body.count("\n") + 1
    return cells


def _number(cells: list[Cell]) -> tuple[Cell, ...]:
    """Give cells ids that depend on nothing but their place or task, so that generation is
    repeatable."""
    numbered = []
    for index, cell in enumerate(cells):
        name = f"{cell.tag}-{cell.task.replace('.', '-')}" if cell.task else f"cell-{index:03d}"
        numbered.append(replace(cell, id=name))
    return tuple(numbered)


def _check_cell(cell: Cell, shown: str) -> None:
    has_solution = bool(_REGION.search(cell.source + "\n") or _LINE.search(cell.source))
    if cell.tag in ("todo", "predict"):
        if not cell.task:
            raise NotebookError(f'{shown}:{cell.line}: a {cell.tag} cell needs task="N1" (or "P1")')
        if not has_solution:
            raise NotebookError(f"{shown}:{cell.line}: this {cell.tag} cell marks no solution")
    elif has_solution:
        raise NotebookError(f"{shown}:{cell.line}: only todo and predict cells may hold a solution")
    if cell.tag == "check" and not cell.task:
        raise NotebookError(
            f'{shown}:{cell.line}: a check cell needs the task="N1" of its todo cell'
        )


def student_source(cell: Cell) -> str:
    """The cell as the learner gets it."""
    todo = f"TODO {cell.task}"
    title = (cell.title or "write this cell").replace('"', "'")

    def region(match: re.Match[str]) -> str:
        return f'{match[1]}raise NotImplementedError("{todo}: {title}")\n'

    def line(match: re.Match[str]) -> str:
        if match["instead"] is not None:
            return f"{match[1]}{match['instead']}  # {todo}"
        name = match["code"].partition("=")[0].rstrip()
        return f"{match[1]}{name} = ...  # {todo}"

    text = _REGION.sub(region, cell.source + "\n").rstrip("\n")
    return _LINE.sub(line, text)


def solved_source(cell: Cell) -> str:
    """The cell with its solution, marks left out."""
    text = re.sub(r"^ *# (BEGIN|END) SOLUTION\n", "", cell.source + "\n", flags=re.MULTILINE)
    return _LINE.sub(lambda match: f"{match[1]}{match['code']}", text.rstrip("\n"))


def first_cell(phase: Phase, solved: bool) -> str:
    """Finds the course, or fetches it from `[project.urls] Repository`, and starts the phase."""
    arguments = f'"{phase.number}", lab="reference"' if solved else f'"{phase.number}"'
    return FIRST_CELL.format(url=_repository(phase), arguments=arguments)


def _repository(phase: Phase) -> str:
    file = phase.root / "pyproject.toml"
    project = (
        tomllib.loads(file.read_text(encoding="utf-8")).get("project", {}) if file.exists() else {}
    )
    return str(project.get("urls", {}).get("Repository", ""))


FIRST_CELL = '''\
# Run this cell first: it finds the course, or fetches it, and installs what is missing.
import pathlib
import shutil
import subprocess
import sys
import zipfile

ADDRESS = "{url}"  # of the repository; empty while it has none


def course_folder(here):
    """The checkout that holds `here`; else one beside the notebook: a folder, a zip, a clone."""
    mark = "labkit/notebook.py"
    for folder in (here, *here.parents):
        if (folder / mark).exists():
            return folder
    beside = lambda: sorted([*here.glob("*/" + mark), *here.glob("*/*/" + mark)])
    for file in here.glob("*.zip"):
        if not beside() and any(mark in name for name in zipfile.ZipFile(file).namelist()):
            shutil.unpack_archive(file, file.with_suffix(""))
    if not beside() and ADDRESS:
        subprocess.run(["git", "clone", "--depth", "1", ADDRESS, str(here / "mini-vllm")])
    if not beside():
        raise FileNotFoundError(
            "The course is not here. Put its folder, or a zip of it, into " + str(here)
            + " (on Colab: the folder sign on the left, then upload), and run this cell again."
        )
    return beside()[0].parents[1]


sys.path.insert(0, str(course_folder(pathlib.Path.cwd())))
from labkit.notebook import check, check_close, check_that, predict, score, start

start({arguments})'''


def to_ipynb(phase: Phase, notebook: Notebook, solved: bool) -> str:
    """The notebook as the text of an .ipynb file: no outputs, no times, ids that stay the same."""
    cells = [_ipynb_cell("code", "start", first_cell(phase, solved), {"tags": ["setup"]})]
    for cell in notebook.cells:
        metadata: dict[str, Any] = {"tags": [cell.tag]} if cell.tag else {}
        if cell.task:
            metadata["task"] = cell.task
        text = solved_source(cell) if solved else student_source(cell)
        cells.append(_ipynb_cell(cell.kind, cell.id, text, metadata))
    document = {
        "cells": cells,
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(document, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def _ipynb_cell(kind: str, name: str, text: str, metadata: dict[str, Any]) -> dict[str, Any]:
    cell: dict[str, Any] = {"cell_type": kind, "id": name, "metadata": metadata}
    cell["source"] = text.splitlines(keepends=True)
    if kind == "code":
        cell |= {"execution_count": None, "outputs": []}
    return cell


def code_of(document: dict[str, Any]) -> list[tuple[str, str]]:
    """(kind, source) of every cell of an .ipynb: what two notebooks are compared by."""
    return [(cell["cell_type"], "".join(cell["source"])) for cell in document["cells"]]
