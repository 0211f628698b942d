"""Tasks are written in their order: what a task's tests need besides it stands before it, or the
chapter says what the screen will say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from labkit.course import source
from labkit.course.manifest import Course, Exercise, Phase
from labkit.course.root import find_root
from labkit.course.skeleton import skeleton
from labkit.judge import public

COURSE = Course(find_root())


def section(phase: Phase, exercise: Exercise) -> str:
    """What the chapter says under the task's headline."""
    text = (phase.folder / "02-mini-build.md").read_text(encoding="utf-8")
    found = re.findall(rf"^#+ Task {exercise.number}\b.*?(?=^#|\Z)", text, re.M | re.S)
    assert len(found) == 1, f"{phase.slug} has {len(found)} sections for task {exercise.number}"
    return str(found[0])


def written_up_to(exercise: Exercise, phase: Phase, folder: Path) -> dict[str, str]:
    """The files of a learner who has written all tasks up to this one, rightly."""
    done = phase.exercises[: phase.exercises.index(exercise) + 1]
    mapping = {}
    for module in phase.modules:
        text, solved = skeleton(phase, module), phase.reference_file(module).read_text("utf-8")
        for name in (name for task in done if task.module == module for name in task.functions):
            text = source.put_back(text, name, solved)
        file = folder / f"{module}.py"
        file.write_text(text, encoding="utf-8")
        mapping[module] = str(file)
    return mapping


def with_later_ones(phase: Phase) -> list[Exercise]:
    """The tasks whose tests come to functions of later ones, and so may need them."""
    mapping = {module: str(phase.reference_file(module)) for module in phase.modules}
    result = public.run_tests(phase, [phase.public_tests], mapping)
    assert result.green and any("entered" in test.detail for test in result.tests)
    names = {
        f"{t.module}:{n}": place for place, t in enumerate(phase.exercises) for n in t.functions
    }
    found = []
    for place, exercise in enumerate(phase.exercises):
        entered = {n for test in result.of_task(exercise) for n in test.detail["entered"]}
        if any(names.get(name, 0) > place for name in entered):
            found.append(exercise)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("phase", COURSE.ready, ids=lambda phase: phase.slug)
def test_no_task_waits_for_a_later_one_without_a_word(phase: Phase, tmp_path: Path) -> None:
    """Else a right answer stays without its ✓, and the chapter's checkpoint is never reached."""
    for exercise in with_later_ones(phase):
        mapping = written_up_to(exercise, phase, tmp_path)
        result = public.judge(phase, mapping, notebook=False, task=exercise)
        waited = {test.waits_for for test in result.tests if test.outcome == "todo"}
        told = section(phase, exercise)
        assert not [task for task in waited if f"waits for {task}" not in told], exercise.id
