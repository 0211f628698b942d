"""The scripts of `autograder/`, run in a folder that is laid out as Gradescope's container is.

The image itself is not built here: that takes Docker and a network. What can be said of its recipe
without them is: each path that it names is there, and nothing of the course is left out of it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from labkit.course.root import find_root
from labkit.grading.student_dist import tracked

ROOT = find_root()
SCRIPTS = ROOT / "autograder"
pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="not run: Gradescope's containers are Linux, with coreutils"
)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """/autograder: source with the phase's number, an empty submission, and results to come."""
    (tmp_path / "source").mkdir()
    (tmp_path / "submission").mkdir()
    (tmp_path / "source" / "phase").write_text("00\n")
    return tmp_path


def start(
    base: Path,
    script: str,
    python: Path | str = sys.executable,
    seconds: int = 240,
    course: Path = ROOT,
) -> subprocess.Popen[str]:
    env = {k: v for k, v in os.environ.items() if k not in ("LAB", "PHASE")} | {
        "AUTOGRADER_BASE": str(base),
        "AUTOGRADER_COURSE": str(course),
        "AUTOGRADER_PYTHON": str(python),
        "AUTOGRADER_SECONDS": str(seconds),
        "PYTHONPATH": str(ROOT),
    }
    return subprocess.Popen(
        ["bash", str(SCRIPTS / script)], env=env, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=300)
    return process.returncode, output


def results(base: Path) -> dict[str, Any]:
    document = json.loads((base / "results" / "results.json").read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


def fake_python(base: Path, body: str) -> Path:
    path = base / "python"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_a_submission_that_cannot_run_gets_a_result_that_says_why(base: Path) -> None:
    for name in ("request.py", "step.py"):
        (base / "submission" / name).write_text("def broken(:\n")
    code, output = finish(start(base, "run_autograder"))
    assert code == 0, output
    document = results(base)
    assert "request.py: SyntaxError, line 1" in document["output"]
    assert [test["score"] for test in document["tests"]] == [0] * 5
    assert sum(test["max_score"] for test in document["tests"]) == 50
    assert document["stdout_visibility"] == "hidden"


@pytest.mark.slow
def test_a_right_submission_gets_all_points(base: Path) -> None:
    for name in ("request.py", "engine/step.py"):
        shutil.copy(ROOT / "mini_vllm" / name, base / "submission")
    code, output = finish(start(base, "run_autograder"))
    assert code == 0, output
    assert sum(test["score"] for test in results(base)["tests"]) == 50


def test_a_grader_that_fails_is_no_fault_of_the_student(base: Path) -> None:
    code, _ = finish(start(base, "run_autograder", fake_python(base, "exit 7")))
    assert code == 1
    assert "no fault of yours" in results(base)["output"]


@pytest.mark.parametrize("gone", ["phase", "course", "export"])
def test_an_image_that_lacks_something_is_no_fault_of_the_student(base: Path, gone: str) -> None:
    """She would hand in again and again, were she told that the grader was stopped."""
    python = fake_python(base, 'test "$3" != export')
    if gone == "phase":
        (base / "source" / "phase").unlink()
    process = start(
        base, "run_autograder", python, course=base / "gone" if gone == "course" else ROOT
    )
    code, _ = finish(process)
    assert code != 0
    assert "no fault of yours" in results(base)["output"]


def test_a_hand_in_without_a_folder_is_told_what_is_missing(base: Path) -> None:
    (base / "submission").rmdir()
    code, output = finish(start(base, "run_autograder"))
    assert code == 0, output
    assert "request.py is missing" in results(base)["output"]


def test_a_submission_that_is_too_slow_is_told_so(base: Path) -> None:
    """It is no failure of the grader, and nothing that a second try would mend."""
    code, output = finish(start(base, "run_autograder", fake_python(base, "sleep 60"), seconds=1))
    assert code == 0, output
    assert "Stopped after 1 s" in results(base)["output"]
    assert results(base)["score"] == 0


def test_a_grader_without_memory_names_the_memory(base: Path) -> None:
    code, _ = finish(start(base, "run_autograder", fake_python(base, "kill -9 $$")))
    assert code == 1
    assert "too little memory" in results(base)["output"]


def test_a_grader_that_is_killed_leaves_a_result_behind(base: Path) -> None:
    """As when the container's time is over."""
    process = start(base, "run_autograder", fake_python(base, 'touch "$0.started"; sleep 15'))
    deadline = time.monotonic() + 120
    while not (base / "python.started").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    assert finish(process)[0] == -signal.SIGKILL
    assert "was stopped: submit again" in results(base)["output"]
    assert results(base)["score"] == 0


def test_an_image_without_a_phase_is_not_built(base: Path) -> None:
    (base / "source" / "phase").unlink()
    code, output = finish(start(base, "setup.sh"))
    assert code == 1
    assert "say which phase is graded: PHASE=03" in output


# ---------------------------------------------------------------- the image's recipe
RECIPE = (SCRIPTS / "Dockerfile").read_text(encoding="utf-8")


def ignored(name: str) -> bool:
    """Whether Docker leaves a path out of the build: a pattern names it, or a folder above it."""
    lines = (SCRIPTS / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    return any(_pattern(line).fullmatch(name) for line in lines)


def _pattern(line: str) -> re.Pattern[str]:
    """`**/` stands for any folders, `*` for anything but a slash."""
    parts = {"**/": "(?:.*/)?", "*": "[^/]*"}
    text = "".join(parts.get(part) or re.escape(part) for part in re.split(r"(\*\*/|\*)", line))
    return re.compile(f"{text}(?:/.*)?")


def test_all_of_the_course_is_in_the_image() -> None:
    """Among it what `setup.sh` needs: tools, engine, requirements, hidden suites."""
    names = tracked(ROOT)
    assert len(names) > 500
    assert [name for name in names if ignored(name)] == []


def test_what_a_checkout_gathers_is_not_in_the_image() -> None:
    """Above all the environment: it is large, and made for another machine."""
    for folder in (".git", ".venv", ".upstream", ".labkit", ".pytest_cache", "labkit/__pycache__"):
        assert ignored(f"{folder}/file"), folder
    assert not ignored("labkit/learner/commands.py")


def test_the_recipe_names_files_that_are_there() -> None:
    copied = re.search(r"(?m)^COPY \. /autograder/source/(\w+)$", RECIPE)
    assert copied, "the whole checkout becomes a folder beside the scripts"
    run = RECIPE.partition("\nRUN ")[2]
    named = re.findall(rf"\b{copied[1]}/(\S+)", run)
    assert set(named) == {"autograder/setup.sh", "autograder/run_autograder"}
    for name in named:
        assert (ROOT / name).is_file()
        assert not ignored(name)
    assert f'course="$base/source/{copied[1]}"' in (SCRIPTS / "setup.sh").read_text()


def test_the_grader_stops_before_gradescope_does() -> None:
    """Whose own limit is ten minutes; a container that it stops reports nothing."""
    text = (SCRIPTS / "run_autograder").read_text(encoding="utf-8")
    found = re.search(r"AUTOGRADER_SECONDS:-(\d+)", text)
    assert found and int(found[1]) + 30 <= 600
