"""`python -m labkit.tab.compare 02 16`: the same verdict in the tab and by `make lab-NN`?

Wrong answers are the phase's named mistakes, right ones the reference's and the alternatives'. Each
is judged twice, task by task: by the tab's driver, with the tab's packages alone, and in processes.
The screens must be the same, word for word. An answer that imports what no tab has, such as numpy,
is counted apart: the tab says so, and where it can be judged.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import unified_diff
from pathlib import Path
from typing import Annotated, Any

import typer

from labkit.course import here
from labkit.course.console import Screen, polite, ready_phase
from labkit.course.manifest import Course, Phase
from labkit.course.root import ROOT
from labkit.judge import mistakes
from labkit.learner import rounds
from labkit.quality import alternatives
from labkit.tab import bundle, look


@dataclass(frozen=True)
class Answer:
    """Lab files, by path, to one task."""

    name: str
    task: str
    files: dict[str, str]


@dataclass(frozen=True)
class Told:
    """What the two say otherwise of one answer, and whether it imports what the tab lacks."""

    lines: str
    lacks: bool


class Lines(Screen):
    """Keeps the lines of a screen."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def put(self, *parts: tuple[str, str]) -> None:
        self.lines.append("".join(text for text, _ in parts))


def wrong_answers(phase: Phase, right: dict[str, str]) -> Iterator[Answer]:
    """The named mistakes in tasks of the tab."""
    names = here.tasks()[phase.slug]
    for mutant in mistakes.load(phase):
        if mutant.exercise in names:
            files = right | {phase.lab_path(mutant.module): mutant.text}
            yield Answer(mutant.name, mutant.exercise, files)


def right_answers(phase: Phase, right: dict[str, str]) -> Iterator[Answer]:
    """The reference and each alternative, for each task of the tab."""
    texts = {"reference": right}
    for name in alternatives.names(phase):
        built = alternatives.build(phase, name)
        texts[name] = right | {phase.lab_path(module): text for module, text in built.items()}
    for task in here.tasks()[phase.slug]:
        for name, files in texts.items():
            yield Answer(name, task, files)


def on_a_machine(place: Path, phase: Phase, answer: Answer) -> list[str]:
    """What `make lab-NN` says, in processes of their own; `place` holds the bundle."""
    for name, text in answer.files.items():
        (place / name).write_text(text, encoding="utf-8")
    names = here.tasks()[phase.slug]
    tasks = tuple(task for task in phase.exercises if task.id in names)
    there, out = replace(phase, root=place, notebook="", exercises=tasks), Lines()
    rounds.judge_and_show(there, task=answer.task, out=out, keeps=False)
    return out.lines


def in_the_tab(
    place: Path, files: dict[str, bytes], phase: Phase, answers: list[Answer]
) -> list[list[str]]:
    """What the driver says to each answer, under this Python with the tab's packages."""
    asked: list[dict[str, Any]] = [
        {"do": "run", "phase": phase.slug, "task": answer.task, "files": answer.files}
        for answer in answers
    ]
    said: list[list[str]] = [[]]
    for event in look.drive(place, files, asked):
        if event.get("event") == "line":
            said[-1].append("".join(text for text, _ in event["parts"]))
        elif "green" in event:
            said.append([])
    return said[:-1]


def differing(phase: Phase, answers: list[Answer], files: dict[str, bytes]) -> Iterator[Told]:
    """Each answer to which the two say something else."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        tab = in_the_tab(place, files, phase, answers)
        for answer, here_said in zip(answers, tab, strict=True):
            there_said = on_a_machine(place, phase, answer)
            if here_said != there_said:
                lines = unified_diff(here_said, there_said, "tab", "lab", n=0, lineterm="")
                lacks = any("cannot be imported in a browser's tab" in line for line in here_said)
                yield Told("\n    ".join([f"{answer.task} {answer.name}", *lines]), lacks)


@polite
def compare(
    phases: Annotated[list[str], typer.Argument(help="such as 02 16")],
    wrong: Annotated[int, typer.Option(help="of each phase's named mistakes so many")] = 30,
    right: Annotated[int, typer.Option(help="right answers of each phase")] = 10,
    seed: Annotated[int, typer.Option(help="which ones are drawn")] = 1,
) -> None:
    """Compare the tab's verdicts with those of `make lab-NN`."""
    os.environ["PYTHONHASHSEED"] = "0"  # some mistakes use hash()
    files, failed = bundle.contents(Course(ROOT)), 0
    for name in phases:
        phase, draw = ready_phase(name), random.Random(seed)
        given = {phase.lab_path(m): phase.reference_file(m).read_text("utf-8")
                 for m in phase.modules}  # fmt: skip
        drawn = []
        for found, count in ((wrong_answers, wrong), (right_answers, right)):
            answers = [*found(phase, given)]
            drawn.append(draw.sample(answers, min(count, len(answers))))
        told = [*differing(phase, [*drawn[0], *drawn[1]], files)]
        other = [one.lines for one in told if not one.lacks]
        counts = f"{len(drawn[0])} wrong and {len(drawn[1])} right answers"
        lacking = len(told) - len(other)
        apart = f"; {lacking} import what no tab has" if lacking else ""
        print(f"{phase.number}: {counts}, {len(other)} verdicts differ{apart}", flush=True)
        for lines in other:
            print(f"  {lines}")
        failed += len(other)
    sys.exit(bool(failed))


if __name__ == "__main__":
    typer.run(compare)
