"""Labs that were solved before the engine had room for phases 08 to 15 are still good today.

`tests/corpora/solved.tar.xz` holds, as of commit 8349a6d, the skeletons of phases 00 to 07 and the
same files solved. A newer course comes (`make update`): the solutions stay, all else becomes new.
"""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from labkit.course import source, sync, update
from labkit.course.files import blob_id, write_text
from labkit.course.manifest import Course, Phase
from labkit.course.root import ROOT
from labkit.course.skeleton import open_holes
from labkit.judge import public

ARCHIVE = ROOT / "tests" / "corpora" / "solved.tar.xz"
ASKED_SINCE = {"test_00_4_a_preempted_request_runs_again_or_blocks"}
"""Promises that a task has made only since then: an old solution cannot know them."""
SOLVED = [phase for phase in Course(ROOT).ready if phase.number <= "07"]


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True)


@pytest.fixture(scope="module")
def updated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Course, dict[str, str]]:
    """A checkout of then with solved labs, after today's course has come; path -> what `update`
    did with it."""
    root = tmp_path_factory.mktemp("course")
    unneeded = shutil.ignore_patterns("__pycache__", "bundled")
    for name in ("phases", "mini_vllm", "tests/public"):
        shutil.copytree(ROOT / name, root / name, ignore=unneeded)
    (root / "labkit").symlink_to(ROOT / "labkit")
    bundled = root / "mini_vllm" / "bundled"
    bundled.symlink_to(ROOT / "mini_vllm" / "bundled")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(root, filter="data")
    skeletons = {path: path.read_text("utf-8") for path in root.glob("labs/*/*.py")}
    record = {p.relative_to(root).as_posix(): blob_id(text) for p, text in skeletons.items()}
    write_text(root / sync.RECORD, sync.record_text(record))
    git(root, "init", "-q")
    git(root, "add", "labs")
    for path in skeletons:
        shutil.copyfile(root / "solved" / path.relative_to(root), path)
    course = Course(root)
    return course, {change.path: change.kind for change in update.update(course, pull=False)}


@pytest.mark.parametrize("phase", SOLVED, ids=lambda phase: phase.number)
def test_update_keeps_the_solutions_and_renews_the_rest(
    updated: tuple[Course, dict[str, str]], phase: Phase
) -> None:
    course, kinds = updated
    mine = course.phase(phase.number)
    then = modules_of_then(mine)
    younger = {task.id for task in mine.exercises if task.module not in then}
    assert set(open_holes(mine)) == younger, "a solution is gone"
    for module in then:
        name = mine.lab_path(module)
        assert kinds[name] in ("merged", "kept"), name
        merged = mine.lab_file(module).read_text("utf-8")
        solved = (course.root / "solved" / name).read_text("utf-8")
        today = mine.reference_file(module).read_text("utf-8")
        for hole in mine.holes(module):
            assert body(merged, hole) == body(solved, hole), f"{name}: {hole} is not the learner's"
            today = source.replace_body(today, hole, body(merged, hole))
        assert merged == today, f"{name}: what is given is not today's"


def modules_of_then(phase: Phase) -> list[str]:
    """Those with a solution in the archive; a task that is younger has a file of its own."""
    solved = phase.root / "solved"
    return [module for module in phase.modules if (solved / phase.lab_path(module)).exists()]


def body(text: str, function: str) -> str:
    return source.body_text(text, source.find(text, function))


@pytest.mark.slow
@pytest.mark.parametrize("phase", SOLVED, ids=lambda phase: phase.number)
def test_the_solutions_still_pass(updated: tuple[Course, dict[str, str]], phase: Phase) -> None:
    mine = updated[0].phase(phase.number)
    mapping = {module: str(mine.lab_file(module)) for module in modules_of_then(mine)}
    result = public.run_tests(mine, [mine.public_tests], mapping)
    assert not result.broken
    assert {test.name for test in result.tests if not test.passed} <= ASKED_SINCE
