"""What a type checker tells a user of the package: nothing of what is right, all of what is not.

The scripts are in `tests/corpora/typing`. The package is looked at as one that is installed, with
its `py.typed`, and without any configuration.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

import mini_vllm
from labkit.course.root import ROOT

SCRIPTS = ROOT / "tests" / "corpora" / "typing"
RIGHT, WRONG = SCRIPTS / "right.py", SCRIPTS / "wrong.py"
Found = set[tuple[str, int, str]]
"""Errors as (file, line, code)."""

WANTED: Found = {
    (WRONG.name, number, code)
    for number, line in enumerate(WRONG.read_text(encoding="utf-8").splitlines(), 1)
    for code in line.partition("# ✗")[2].split()
}
MYPY = {found for found in WANTED if not found[2].startswith("report")}
PYRIGHT = WANTED - MYPY


def interpreter(folder: Path, packages: bool) -> str:
    """A Python in which the checkout counts as installed, alone or beside what it needs.

    What a checker needs to read of torch alone takes it half a minute.
    """
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    others = [sysconfig.get_path("purelib")] if packages else []
    (site / "installed.pth").write_text("\n".join([str(ROOT), *others]), encoding="utf-8")
    return str(folder / "bin" / "python")


def say(found: Found) -> str:
    return "\n".join(f"{file}:{line} {code}" for file, line, code in sorted(found))


def expect(found: Found, wanted: Found) -> None:
    missing, extra = say(wanted - found), say(found - wanted)
    assert found == wanted, f"not found:\n{missing}\nfound, and not wrong:\n{extra}"


def test_the_corpus_names_an_error_of_each_for_every_wrong_line() -> None:
    assert {found[:2] for found in MYPY} == {found[:2] for found in PYRIGHT}
    assert len(MYPY) == len(PYRIGHT) > 50


def test_every_folder_is_a_package() -> None:
    """mypy passes over a folder without an `__init__.py`, and pyright misses its `py.typed`."""
    folders = {path.parent for path in (ROOT / "mini_vllm").rglob("*.py")}
    assert not [folder for folder in folders if not (folder / "__init__.py").is_file()]


def test_every_name_of_the_front_page_is_used() -> None:
    said = RIGHT.read_text(encoding="utf-8")
    assert not [name for name in mini_vllm.__all__ if not re.search(rf"\b{name}\b", said)]


@pytest.mark.parametrize("packages", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_mypy_finds_what_is_wrong_and_nothing_else(packages: bool, tmp_path: Path) -> None:
    python = interpreter(tmp_path / "environment", packages)
    options = ["--strict", "--config-file=", f"--cache-dir={tmp_path / 'cache'}"]
    command = [sys.executable, "-m", "mypy", *options, "--python-executable", python]
    ran = subprocess.run([*command, str(RIGHT), str(WRONG)], capture_output=True, text=True)
    lines = re.findall(r"(?m)^.*?(\w+\.py):(\d+): error: .*\[([\w-]+)\]$", ran.stdout)
    assert ran.returncode == 1 and lines, ran.stdout + ran.stderr
    expect({(file, int(line), code) for file, line, code in lines}, MYPY)


def test_pyright_finds_what_is_wrong_and_nothing_else(tmp_path: Path) -> None:
    """Of what is right it says nothing in its strict mode, either."""
    if shutil.which("pyright") is None:
        pytest.skip("pyright is not installed (npm install --global pyright): its half is not run")
    strict = f"# pyright: strict\n{RIGHT.read_text(encoding='utf-8')}"
    (tmp_path / RIGHT.name).write_text(strict, encoding="utf-8")
    shutil.copy(WRONG, tmp_path)
    python = interpreter(tmp_path / "environment", packages=True)
    command = ["pyright", "--outputjson", "--pythonpath", python, RIGHT.name, WRONG.name]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    expect(
        {
            (Path(one["file"]).name, one["range"]["start"]["line"] + 1, one.get("rule", "syntax"))
            for one in json.loads(ran.stdout)["generalDiagnostics"]
            if one["severity"] == "error"
        },
        PYRIGHT,
    )
