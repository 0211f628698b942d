"""One handed-in folder: which files count, and what is refused before anything runs."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from labkit.course.manifest import Course, Phase
from labkit.course.root import find_root
from labkit.grading import submission
from labkit.grading.result import GradeResult, hash_submission
from labkit.grading.taken import take

COURSE = Course(find_root())


@pytest.fixture
def phase() -> Phase:
    return COURSE.phase("03")


def hand_in(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = content.encode() if isinstance(content, str) else content
        path.write_bytes(data)
    return folder


def found(phase: Phase, folder: Path) -> dict[str, str]:
    files = submission.find_files(phase, folder)
    return {p.name: p.relative_to(folder).as_posix() for p in files.values() if p.exists()}


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("labs/03-scheduler", "labs/03-scheduler"),
        ("03-scheduler", "03-scheduler"),
        (".", ""),
        ("hw3-final/src", "hw3-final/src"),
    ],
)
def test_files_are_found_where_students_put_them(
    phase: Phase, tmp_path: Path, where: str, expected: str
) -> None:
    hand_in(tmp_path / where, {"scheduler.py": "x = 1\n", "request_queue.py": "y = 1\n"})
    names = {"scheduler.py", "request_queue.py"}
    assert found(phase, tmp_path) == {n: f"{expected}/{n}".lstrip("/") for n in names}


def test_the_reference_in_a_whole_checkout_is_never_taken(phase: Phase, tmp_path: Path) -> None:
    """A student hands in everything but the lab: the engine's file has the same name."""
    hand_in(
        tmp_path, {"mini_vllm/core/scheduler.py": "", "solutions/03-scheduler/scheduler.py": ""}
    )
    assert found(phase, tmp_path) == {}


def test_a_name_that_is_there_twice_is_not_guessed(phase: Phase, tmp_path: Path) -> None:
    hand_in(tmp_path, {"old/scheduler.py": "", "new/scheduler.py": "", "request_queue.py": ""})
    assert found(phase, tmp_path) == {"request_queue.py": "request_queue.py"}


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["v2/scheduler.py", "v1/scheduler.py"], "not v1/scheduler.py, v2/scheduler.py"),
        (["Scheduler.PY"], "not Scheduler.PY"),
        (["schedulers.py"], ""),
        (["scheduler (1).py"], "not scheduler (1).py"),
        (["scheduler - Copy.py"], "not scheduler - Copy.py"),
        (["scheduler.py "], "not scheduler.py "),
        (["scheduler.py.txt"], "not scheduler.py.txt"),
        (["scheduler.ipynb"], "not scheduler.ipynb"),
        (["__pycache__/scheduler.cpython-311.pyc"], ""),
        (["homework.zip"], "not homework.zip"),
        (["sched\nuler.py"], "not sched\\nuler.py"),
        (["scheduler.py\x1b[31m"], ""),
        (["scheduler\x1b.py"], "not scheduler\\x1b.py"),
    ],
)
def test_a_file_that_may_have_been_meant_is_named(
    phase: Phase, tmp_path: Path, names: list[str], said: str
) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x = 1\n", encoding="utf-8")
    problems = submission.check_files(tmp_path, submission.find_files(phase, tmp_path))
    problem = problems.get("mini_vllm.core.scheduler")
    assert (problem is None) if not said else (problem is not None and said in problem.text)


def test_of_a_hand_in_with_too_many_files_those_in_their_place_count(
    phase: Phase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million files are not looked at one by one, for each module anew."""
    monkeypatch.setattr(submission, "MAX_ENTRIES", 50)
    looked: list[object] = []
    below = submission._all_below

    def counted(folder: Path) -> Iterator[os.DirEntry[str]]:
        for entry in below(folder):
            looked.append(entry)
            yield entry

    monkeypatch.setattr(submission, "_all_below", counted)
    hand_in(tmp_path, {f"data/{n}.txt": "" for n in range(200)} | {"labs/03-scheduler/x": ""})
    files = submission.find_files(phase, tmp_path)
    problems = submission.check_files(tmp_path, files)
    assert len(problems) == 2
    assert all("is missing among the first 50 files" in p.text for p in problems.values())
    assert len(looked) <= 2 * 50
    for name in ("scheduler.py", "request_queue.py"):
        (tmp_path / "labs/03-scheduler" / name).write_text("x = 1\n")
    assert set(found(phase, tmp_path)) == {"scheduler.py", "request_queue.py"}
    assert submission.check_files(tmp_path, submission.find_files(phase, tmp_path)) == {}


def test_folders_deeper_than_the_stack_do_not_end_the_search(phase: Phase, tmp_path: Path) -> None:
    file, deep = phase.lab_file(phase.modules[0]).name, os.open(tmp_path, os.O_RDONLY)
    try:
        for _ in range(1100):
            os.mkdir("d", dir_fd=deep)
            deep, above = os.open("d", os.O_RDONLY, dir_fd=deep), deep
            os.close(above)
        assert submission.find_files(phase, tmp_path)[phase.modules[0]] == tmp_path / file
    finally:
        os.close(deep)
        subprocess.run(["rm", "-rf", str(tmp_path / "d")], check=True)


def test_a_link_is_refused(phase: Phase, tmp_path: Path) -> None:
    """A link to the reference would be the reference."""
    hand_in(tmp_path, {"request_queue.py": ""})
    target = phase.reference_file("mini_vllm.core.scheduler")
    (tmp_path / "scheduler.py").symlink_to(target)
    said = submission.Problem("missing file", "scheduler.py is a link; hand in the file itself")
    problems = submission.check_files(tmp_path, submission.find_files(phase, tmp_path))
    assert problems == {"mini_vllm.core.scheduler": said}


def test_a_linked_folder_is_refused(phase: Phase, tmp_path: Path) -> None:
    outside = hand_in(tmp_path / "outside", {"scheduler.py": "", "request_queue.py": ""})
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "03-scheduler").symlink_to(outside)
    problems = submission.check_files(mine, submission.find_files(phase, mine))
    assert len(problems) == 2 and all("is a link" in p.text for p in problems.values())


def test_a_refused_submission_has_a_whole_result(phase: Phase, tmp_path: Path) -> None:
    hand_in(tmp_path, {"request_queue.py": "def (:"})
    (tmp_path / "scheduler.py").symlink_to(phase.reference_file("mini_vllm.core.scheduler"))
    result = submission.grade_folder(phase, tmp_path, seed=7)
    assert "scheduler.py is a link" in result.problem and "request_queue.py: " in result.problem
    assert [group.id for group in result.groups] == [task.id for task in phase.exercises]
    assert (result.earned, result.isolation, result.status) == (0, "none", "graded")
    assert result.points == sum(task.points for task in phase.exercises)
    assert set(result.submission) == {"scheduler.py", "request_queue.py"}
    assert not result.passed


def test_what_can_run_goes_to_the_grader(
    phase: Phase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand_in(tmp_path, {"scheduler.py": "x = 1\n", "request_queue.py": "y = 1\n"})
    seen: list[tuple[Mapping[str, Path], int, str]] = []

    def grader(
        phase: Phase, files: Mapping[str, Path], seed: int, isolate: str, refused: object
    ) -> GradeResult:
        assert refused == {}
        seen.append((files, seed, isolate))
        refused = submission.refuse(phase, files, seed, submission.Problem("crash", ""))
        return replace(refused, isolation="plain")

    monkeypatch.setattr(submission.grade, "grade_files", grader)
    result = submission.grade_folder(phase, tmp_path, 7, "namespaces")
    assert result.isolation == "plain"
    names = ("request_queue", "scheduler")
    assert seen == [({f"mini_vllm.core.{n}": tmp_path / f"{n}.py" for n in names}, 7, "namespaces")]


BOTH = ("naive.py", "roofline.py")  # the third file of phase 01 is always in order
LATIN = "# -*- coding: latin-1 -*-\n# Universität\nx = 1\n".encode("latin-1")


@pytest.mark.parametrize(
    ("files", "taken_files", "problem"),
    [
        (dict.fromkeys(BOTH, "x = 1\n"), BOTH, ""),
        ({"naive.py": "x = 1\n"}, BOTH[:1], "roofline.py is missing: hand it in"),
        (dict.fromkeys((*BOTH, "conftest.py", "torch.py"), "x = 1\n"), BOTH, ""),
        (dict.fromkeys(BOTH, b"x = 1\r\ny = 2\r\n"), BOTH, ""),
        (dict.fromkeys(BOTH, b"\xef\xbb\xbfx = 1\n"), BOTH, ""),
        (dict.fromkeys(BOTH, LATIN), BOTH, ""),
        (
            {"naive.py": LATIN[26:], "roofline.py": "x = 1\n"},
            BOTH[1:],
            "naive.py: line 1 is no UTF-8 text, and declares no other; save the file as UTF-8",
        ),
        ({f"Übung 1 – Lösung/{name}": "x = 1\n" for name in BOTH}, BOTH, ""),
        (
            {"naive.ipynb": "{}", "roofline.py": "x = 1\n"},
            BOTH[1:],
            "naive.py is missing: hand in one file of this name, not naive.ipynb",
        ),
        (
            {"v1/naive.py": "x = 1\n", "v2/naive.py": "x = 1\n", "roofline.py": "x = 1\n"},
            BOTH[1:],
            "naive.py is missing: hand in one file of this name, not v1/naive.py, v2/naive.py",
        ),
        (
            {"naive.py": "", "roofline.py": "x = (\n"},
            (),
            "naive.py: it is empty: hand in the file that you have written · roofline.py:"
            " SyntaxError, line 1: '(' was never closed; mend that line, or the one above it",
        ),
        (
            {"hw1.zip": b"PK"},
            (),
            "naive.py is missing: hand in one file of this name, not hw1.zip · roofline.py is"
            " missing: hand in one file of this name, not hw1.zip",
        ),
    ],
    ids=(
        "right missing more windows mark latin-1 undeclared umlauts notebook twice empty zip"
    ).split(),
)
def test_of_an_odd_hand_in_each_file_is_taken_or_named(
    tmp_path: Path, files: Mapping[str, str | bytes], taken_files: tuple[str, ...], problem: str
) -> None:
    phase = COURSE.phase("01")
    hand_in(tmp_path / "hers", {"capacity.py": "x = 1\n", **files})
    (tmp_path / "copies").mkdir()
    there = submission.find_files(phase, tmp_path / "hers")
    refused = submission.check_files(tmp_path / "hers", there)
    found = take(phase, there, tmp_path / "copies", refused)
    names = sorted(Path(file).name for file in found.mapping.values())
    assert tuple(names) == ("capacity.py", *taken_files)
    assert found.problem == problem


# ---------------------------------------------------------------- files that are no plain ones
def test_a_link_to_itself_and_a_huge_file_are_named_at_once(tmp_path: Path) -> None:
    """Nothing of 20 GB is read before its size is asked for, and no link is followed for ever."""
    loop, sparse = tmp_path / "loop.py", tmp_path / "huge.py"
    loop.symlink_to(loop)
    with open(sparse, "wb") as file:
        file.truncate(20 << 30)
    begin = time.process_time()
    assert hash_submission({"loop.py": loop, "huge.py": sparse}) == {"loop.py": "", "huge.py": ""}
    assert "is a link" in submission.check_files(tmp_path, {"m": loop})["m"].text
    assert time.process_time() - begin < 5
