"""The check cells of the notebooks notice wrong answers: small changes by rule, those that the
hidden suites are measured with. What they let pass is listed here, with the reason."""

from __future__ import annotations

import re
from typing import Any

import pytest

from labkit import notebook
from labkit.course import notebook_source, source
from labkit.course.manifest import Course, Phase
from labkit.course.root import find_root
from labkit.inside import alarm
from labkit.judge.notebook_judge import run_cell
from labkit.quality.mutate import of_function

COURSE = Course(find_root())
SLUGS = [phase.slug for phase in COURSE.ready if phase.notebook]

SECONDS = 5.0
HARMLESS = {
    "N01.3": {"`0` -> `1`"},  # a gain of less than one operation
    "N03.5": {"`100` -> `101`"},  # of fewer values than a hundred it is the same
    "N07.2": {  # of operations that take no keywords, and a base class without a state
        "`super().__init__()` -> `pass`",
        "`func(*args, **kwargs or {})` -> `func(*args)`",
        "`kwargs or {}` -> `kwargs and {}`",
        "`kwargs or {}` -> `kwargs`",
        "`kwargs or {}` -> `{}`",
    },
    "N11.5": {  # the same singular values
        "`torch.linalg.svd(b @ a, full_matrices=False)` -> `torch.linalg.svd(b @ a)`",
        "`False` -> `True`",
    },
    "N12.2": {"`0` -> `1`"},  # each is written before it is read
    "N14.1": {"`pause <= gap` -> `pause < gap`"},  # equal ones give all tokens either way
}
ZIPPED = {"N06.1", "N06.3", "N08.1", "N08.5", "N09.2"}
"""Answers that hold zip's `strict` for lengths that are equal anyway, or known to differ."""


@pytest.fixture(autouse=True)
def _the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB", "reference")
    monkeypatch.setenv("MPLBACKEND", "Agg")


def survivors(phase: Phase) -> set[str]:
    """Changes of the phase's answers that its check cells let pass: "N03.2: `+` -> `-`"."""
    alarm.install()
    book = notebook_source.read(phase)
    checks = {cell.task: cell.source for cell in book.cells if cell.tag == "check"}
    space: dict[str, Any] = {"__name__": "__main__"}
    space |= {name: getattr(notebook, name) for name in ("check", "check_close", "check_that")}
    found = set()
    for cell in book.cells:
        if cell.kind != "code" or cell.tag not in ("setup", "todo", "check"):
            continue
        text = notebook_source.solved_source(cell) if cell.tag == "todo" else cell.source
        for name in source.functions(text) if cell.tag == "todo" else ():
            for change in of_function(text, "lab.ipynb", name, cell.task):
                ended = [
                    run_cell(part, "lab.ipynb", trial, SECONDS)["outcome"]
                    for trial in [dict(space)]
                    for part in (change.text, checks[cell.task])
                ]
                if ended == ["passed", "passed"]:
                    found.add(f"{cell.task} {change.name}")
        assert run_cell(text, "lab.ipynb", space, 60.0)["outcome"] == "passed", cell.task
    return found


def _is_harmless(survivor: str) -> bool:
    task, _, label = survivor.partition(" ")
    change = re.sub(r" \(\d+\)$", "", label.partition(": ")[2])
    strict = "zip(" in change or change == "`True` -> `False`"
    return change in HARMLESS.get(task, ()) or (task in ZIPPED and strict)


@pytest.mark.parametrize("slug", SLUGS)
def test_a_wrong_answer_is_not_called_right(slug: str) -> None:
    assert {one for one in survivors(COURSE.phase(slug)) if not _is_harmless(one)} == set()


@pytest.mark.parametrize(
    "rule",
    [
        "scheduled > 1",  # the last token of a prompt may come alone
        "computed_before + scheduled <= prompt",  # one that comes back computes beyond it
        "computed_before != prompt",  # only the first output token goes in there
    ],
)
def test_three_ways_to_misread_a_prompt_are_found(rule: str) -> None:
    phase = COURSE.phase("00")
    cells = {(cell.task, cell.tag): cell.source for cell in notebook_source.read(phase).cells}
    answer = f"""
def deed(scheduled, computed_before, prompt):
    return "waits" if not scheduled else "prompt" if {rule} else "decodes"
"""
    space: dict[str, Any] = {"check": notebook.check}
    alarm.install()
    assert run_cell(answer, "lab.ipynb", space, SECONDS)["outcome"] == "passed"
    check = cells["N00.4", "check"]
    assert run_cell(check, "lab.ipynb", space, SECONDS)["outcome"] == "failed"
