"""The overlay: a learner's file in the place of an engine module, in this process's children
only."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from labkit.inside import child
from labkit.process import overlay
from tests.labkit.toy_course import lab, make_course, rewrite, write


def run(
    root: Path, code: str, choice: str = "labs", env: dict[str, str] | None = None
) -> child.Finished:
    from labkit.course.manifest import Course

    mapping = overlay.mapping_for(Course(root).ready, choice)
    return child.run(["-c", code], overlay.environment(root, mapping, env), child.Limits(60), root)


def test_the_learners_file_stands_in_and_the_reference_does_not(tmp_path: Path) -> None:
    make_course(tmp_path)
    code = "import toy.fifo as m; print(m.__file__, m.__name__, m.__package__)"
    assert run(tmp_path, code).stdout.split() == [
        str(tmp_path / "labs/00-toy/fifo.py"), "toy.fifo", "toy",
    ]  # fmt: skip
    assert run(tmp_path, code, "reference").stdout.split()[0] == str(tmp_path / "toy/fifo.py")


def test_relative_imports_and_other_modules_work(tmp_path: Path) -> None:
    course = make_course(tmp_path)
    write(tmp_path, "toy/other.py", "VALUE = 7\n")
    write(tmp_path, "toy/user.py", "from .fifo import VALUE as SEEN\n")
    lab(course).write_text("from .other import VALUE\n")
    done = run(tmp_path, "from toy.user import SEEN; from toy import fifo; print(SEEN, fifo.VALUE)")
    assert done.stdout.split() == ["7", "7"], done.stderr


def test_tracebacks_show_the_learners_path(tmp_path: Path) -> None:
    make_course(tmp_path)
    done = run(tmp_path, "from toy.fifo import clamp; clamp(1, 2, 3)")
    assert f'File "{lab_path(tmp_path)}", line' in done.stderr
    assert "TODO 00.1: write clamp in labs/00-toy/fifo.py" in done.stderr


def lab_path(root: Path) -> Path:
    return root / "labs/00-toy/fifo.py"


def test_it_reaches_grandchildren_however_they_are_started(tmp_path: Path) -> None:
    make_course(tmp_path)
    code = (
        "import multiprocessing, subprocess, sys\n"
        "import importlib\n"
        "subprocess.run([sys.executable, '-c', 'import toy.fifo; print(toy.fifo.__file__)'])\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.apply(importlib.import_module, ('toy.fifo',)) if 0 else"
        " pool.apply(eval, (\"__import__('toy.fifo').fifo.__file__\",)))\n"
    )
    done = run(tmp_path, code)
    assert done.stdout.split() == [str(lab_path(tmp_path))] * 2, done.stderr


def test_an_edit_is_seen_at_once_and_leaves_no_bytecode(tmp_path: Path) -> None:
    course = make_course(tmp_path)
    code = "from toy.fifo import clamp; print(clamp(1, 2, 3))"
    for value in ("11", "22"):  # same size, same second: a cached .pyc would be taken for fresh
        rewrite(course, "clamp", f"return {value}")
        assert run(tmp_path, code).stdout.strip() == value
    assert not list(tmp_path.glob("labs/**/*.pyc"))


def test_a_syntax_error_names_the_file_and_what_it_stands_for(tmp_path: Path) -> None:
    course = make_course(tmp_path)
    lab(course).write_text("def clamp(:\n")
    done = run(tmp_path, "import toy.fifo")
    assert "SyntaxError" in done.stderr
    assert f'File "{lab(course)}", line 1' in done.stderr
    assert "stands in for toy.fifo" in done.stderr


def test_a_missing_file_is_said_plainly(tmp_path: Path) -> None:
    course = make_course(tmp_path)
    lab(course).unlink()
    done = run(tmp_path, "import toy.fifo")
    assert "fifo.py is missing; it stands in for toy.fifo" in done.stderr


def test_another_sitecustomize_still_runs(tmp_path: Path) -> None:
    make_course(tmp_path)
    write(tmp_path, "site/sitecustomize.py", "import os\nos.environ['SEEN'] = 'yes'\n")
    env = dict(os.environ) | {"PYTHONPATH": str(tmp_path / "site")}
    done = run(tmp_path, "import os, toy.fifo as m; print(os.environ['SEEN'], m.__file__)", env=env)
    assert done.stdout.split() == ["yes", str(lab_path(tmp_path))], done.stderr


def test_installing_too_late_is_refused() -> None:
    with pytest.raises(ImportError, match=r"labkit\.process\.overlay: imported before the overlay"):
        overlay.install({"labkit.process.overlay": "x.py"})
    assert not any(isinstance(finder, overlay.Finder) for finder in sys.meta_path)


def test_lab_must_be_labs_or_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB", "solutions")
    with pytest.raises(ValueError, match="LAB is 'solutions'"):
        overlay.mapping_for([])


def test_limits_hold_and_a_hang_comes_back_with_its_stack(tmp_path: Path) -> None:
    env = overlay.environment(tmp_path, {})
    hang = child.run(["-c", "def spin():\n    while True: pass\nspin()"], env, child.Limits(5))
    assert hang.timed_out
    assert "in spin" in hang.stderr
    memory = child.run(["-c", "x = bytearray(2 << 30)"], env, child.Limits(60, memory_mb=512))
    assert "MemoryError" in memory.stderr
    code = f"open({str(tmp_path / 'big')!r}, 'wb').write(bytes(3 << 20))"
    assert "File too large" in child.run(["-c", code], env, child.Limits(60, file_mb=1)).stderr
    spam = child.run(["-c", "print('x' * (1 << 22))"], env, child.Limits(60))
    assert len(spam.stdout) == child.OUTPUT_BYTES
