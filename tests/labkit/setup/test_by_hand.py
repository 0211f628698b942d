"""A lab file that is given to Python itself is told what runs it."""

from __future__ import annotations

import subprocess
import venv
from pathlib import Path

import pytest

from labkit.setup import by_hand
from labkit.setup.venv import Venv


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with one lab file and a .venv as set-up leaves it."""
    root = tmp_path_factory.mktemp("course")
    for name in (
        "labkit/__main__.py",
        "labs/03-scheduler/scheduler.py",
        "mine/03-old/scheduler.py",
    ):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text("print('it has run')\n")
    (root / "labs" / "03-scheduler" / "uses_the_engine.py").write_text("import mini_vllm\n")
    venv.create(root / ".venv", with_pip=False)
    Venv(root).write_stamp([], "3.11")
    return root


def run(root: Path, script: str, folder: str = ".", **more: str) -> tuple[int, str]:
    """Exit code and all that is said, of `.venv/bin/python script` in a folder."""
    words = [str(root / ".venv" / "bin" / "python"), script]
    done = subprocess.run(
        words, cwd=root / folder, env=more, capture_output=True, text=True, timeout=300
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("folder", "script"),
    [
        (".", "labs/03-scheduler/scheduler.py"),
        ("labs/03-scheduler", "scheduler.py"),
        ("labs", "03-scheduler/uses_the_engine.py"),
    ],
)
def test_what_judges_a_lab_file_is_said_in_place_of_a_traceback(
    root: Path, folder: str, script: str
) -> None:
    code, said = run(root, script, folder)
    assert code == 2 and "make lab-03" in said and "make run-03" in said
    assert "Traceback" not in said and "it has run" not in said
    assert f"python -m labkit run --labs 03 -- labs/03-scheduler/{Path(script).name}" in said


def test_other_files_run_as_ever(root: Path) -> None:
    assert run(root, "mine/03-old/scheduler.py") == (0, "it has run\n")


def test_what_the_course_itself_runs_is_left_alone(root: Path) -> None:
    """`labkit run --labs 03 -- labs/03-scheduler/scheduler.py` comes here, too."""
    assert run(root, "labs/03-scheduler/scheduler.py", LABKIT_OVERLAY="{}") == (0, "it has run\n")


def test_a_folder_of_that_name_elsewhere_is_no_lab(tmp_path: Path) -> None:
    (tmp_path / "labs" / "03-x").mkdir(parents=True)
    assert by_hand.about(str(tmp_path / "labs" / "03-x" / "a.py")) == ""
