"""The counts of tests that the chapters print are those of the tests.

`make lab-NN` shows "(6 of 6)" behind a task and "public 0/32" at its end; the chapters print the
same lines, so that a learner knows what green looks like.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from functools import cache

import pytest

from labkit.course import source
from labkit.course.manifest import Course, Exercise, Phase
from labkit.course.root import ROOT

COURSE = Course(ROOT)
WORDS = (
    "no one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
).split()
each_phase = pytest.mark.parametrize("phase", COURSE.ready, ids=lambda phase: phase.number)


@cache
def collected() -> Counter[str]:
    """Task -> its public tests, as pytest collects them: "04.2" -> 6."""
    words = ["-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-o", "addopts="]
    words += ["--import-mode=importlib", f"--rootdir={ROOT}", str(ROOT / "tests" / "public")]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"(?m)::test_(\d\d)_(\d+)_", done.stdout)
    return Counter(f"{number}.{task}" for number, task in found)


def counts(phase: Phase) -> dict[str, int]:
    """The same, for one phase."""
    return {task: n for task, n in collected().items() if task.startswith(phase.number)}


def chapters(phase: Phase) -> str:
    texts = [path.read_text("utf-8") for path in sorted(phase.folder.glob("*.md"))]
    return "\n".join(texts)


@each_phase
def test_checkpoints_show_as_many_tests_as_a_task_has(phase: Phase) -> None:
    shown = re.findall(r"✓ (\d\d\.\d) [^\n]*\((\d+) of (\d+)\)", chapters(phase))
    for task, passed, total in shown:
        assert (task, int(passed), int(total)) == (task, *[counts(phase)[task]] * 2)


def test_the_table_of_phase_00_counts_the_tests_of_each_task() -> None:
    phase = COURSE.phase("00")
    labs = (phase.folder / "03-labs.md").read_text("utf-8")
    rows = re.findall(r"(?m)^\| (\d\d\.\d) \|.*\| (\d+) \|$", labs)
    assert {task: int(count) for task, count in rows} == counts(phase)


@each_phase
def test_the_whole_is_the_sum_of_the_tasks(phase: Phase) -> None:
    text = chapters(phase)
    said = re.findall(r"public (?:0|\d+)/(\d+)", text)
    said += re.findall(r"\b(\d+) tests (?:in \d+ tasks|on your file)", text)
    assert {int(count) for count in said} <= {sum(counts(phase).values())}


@each_phase
def test_files_and_tasks_are_counted_right(phase: Phase) -> None:
    build = (phase.folder / "02-mini-build.md").read_text("utf-8")
    guide = (phase.folder / "00-guide.md").read_text("utf-8")
    files = re.findall(r"(?m)^(\w+) files?, \w+ tasks", build)
    files += re.findall(r"lines in (\w+) files of", guide)
    tasks = re.findall(r"(?m)^(?:\w+ files?, )?(\w+) tasks", build)
    assert {WORDS.index(word.lower()) for word in files} <= {len(phase.modules)}
    assert {WORDS.index(word.lower()) for word in tasks} == {len(phase.exercises)}


def body_lines(phase: Phase, task: Exercise) -> dict[str, int]:
    """Function of a task -> lines of its solution, without docstring, comments and empty lines.

    A chapter names a method with its class or without, so both stand here.
    """
    text = phase.reference_file(task.module).read_text("utf-8")
    found = {}
    for name in task.functions:
        body = source.body_text(text, source.find(text, name)).splitlines()
        lines = [line.strip() for line in body]
        count = sum(bool(line) and not line.startswith("#") for line in lines)
        found[name] = found[name.rpartition(".")[2]] = count
    return found


@each_phase
def test_the_lines_of_a_function_are_counted_right(phase: Phase) -> None:
    build = (phase.folder / "02-mini-build.md").read_text("utf-8")
    wrong = []
    for number, section in re.findall(r"(?ms)^## Task (\d+)(.*?)(?=^## |\Z)", build):
        lines = body_lines(phase, phase.exercise(number))
        for name, said in re.findall(r"`([\w.]+)`\s+\((\d+)\b", section):
            if name in lines and lines[name] != int(said):
                wrong.append(f"task {number}: `{name}` has {lines[name]} lines, not {said}")
    assert not wrong, "\n".join(wrong)


@each_phase
def test_the_guide_says_about_how_many_lines_that_is(phase: Phase) -> None:
    guide = (phase.folder / "00-guide.md").read_text("utf-8")
    (said,) = re.findall(r"\*\*You write:\*\*\s+about\s+(\d+)\s+lines", guide)
    lines = [
        count
        for task in phase.exercises
        for name, count in body_lines(phase, task).items()
        if name in task.functions
    ]
    assert abs(sum(lines) - int(said)) <= 5, f"{sum(lines)} lines in all"


def test_every_phase_but_those_without_a_count_was_looked_at() -> None:
    """Else the patterns above have gone blind."""
    counted = {p.number for p in COURSE.ready if re.search(r"✓ \d\d\.\d .*\(\d+ of", chapters(p))}
    assert {"00", "02", "03", "04", "05", "06"} <= counted


def test_phase_04_counts_what_runs_a_kernel() -> None:
    """`make lab-04` counts the tests of the kernels' tasks once more, as its second tier."""
    text = chapters(COURSE.phase("04"))
    kernels = sum(collected()[f"04.{task}"] for task in (2, 4, 5, 6))
    assert f"interpreter 0/{kernels}" in text
    assert f"{kernels} of these tests run your kernels" in text
