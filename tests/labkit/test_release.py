"""The workflows of `.github`, and what a release runs, as far as it can be run here."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import mini_vllm
from labkit.cli import COMMANDS
from labkit.course.root import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
each_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
NOTES = ROOT / ".github" / "release_notes.py"
FILL = ROOT / ".github" / "fill_addresses.sh"


def jobs(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    return found


def commands(path: Path) -> list[str]:
    return [step["run"] for job in jobs(path).values() for step in job["steps"] if "run" in step]


@each_workflow
def test_a_workflow_has_jobs_with_steps_that_act(path: Path) -> None:
    for job in jobs(path).values():
        needs = job.get("needs", [])
        assert {needs} if isinstance(needs, str) else set(needs) <= jobs(path).keys()
        assert job["runs-on"] and all(("uses" in step) != ("run" in step) for step in job["steps"])
        for step in job["steps"]:
            assert re.search(r"@v\d+$", step.get("uses", "@v1")), step


@each_workflow
def test_what_a_workflow_runs_is_there(path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for text in commands(path):
        assert subprocess.run(["bash", "-n", "-c", text]).returncode == 0, text
        for target in re.findall(r"(?m)^make ([\w-]+)", text):
            assert re.search(rf"(?m)^{target}:", makefile), target
        assert set(re.findall(r"-m labkit ([\w-]+)", text)) <= COMMANDS.keys()
        for file in re.findall(r"[\w./-]+\.(?:py|sh)\b", text):
            assert (ROOT / file).is_file(), file


def test_a_tag_has_the_notes_of_its_version(tmp_path: Path) -> None:
    notes = runpy.run_path(str(NOTES))["notes"]
    (tmp_path / "mini_vllm").mkdir()
    (tmp_path / "mini_vllm" / "__init__.py").write_text('__version__ = "1.2.0"\n')
    changes = (
        "# Changelog\n\n## 1.2.0 (2026-12-01)\n\nNew.\n\n- One.\n\n## 1.1.0 (2026-11-01)\n\nOld.\n"
    )
    (tmp_path / "CHANGELOG.md").write_text(changes)
    assert notes("v1.2.0", tmp_path) == "New.\n\n- One."
    with pytest.raises(SystemExit, match=r"tag is v1\.1\.0, but .*1\.2\.0.*tag v1\.2\.0"):
        notes("v1.1.0", tmp_path)
    for changes in ("# Changelog\n", "## 1.2.0 (unreleased)\n\nNew.\n"):
        (tmp_path / "CHANGELOG.md").write_text(changes)
        with pytest.raises(SystemExit, match=r"no section .## 1\.2\.0"):
            notes("v1.2.0", tmp_path)


def test_the_changelog_has_a_section_for_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert mini_vllm.__version__ in re.findall(r"(?m)^## (\S+) \([\w-]+\)$", text)
    command = [sys.executable, str(NOTES), "v0.0.1"]
    said = subprocess.run(command, capture_output=True, text=True)
    assert said.returncode == 1 and "the tag is v0.0.1" in said.stderr


def test_all_addresses_are_of_one_repository() -> None:
    """Of none yet, `OWNER/REPOSITORY`, until the first release fills them in."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    notebook = (ROOT / "docs" / "colab.ipynb").read_text(encoding="utf-8")
    [here] = re.findall(r"https://codespaces\.new/([\w.-]+/[\w.-]+)", readme)
    in_colab = f"https://colab.research.google.com/github/{here}/blob/main/docs/colab.ipynb"
    in_kaggle = f"https://kaggle.com/kernels/welcome?src=https://github.com/{here}/blob/main/docs/colab.ipynb"
    assert in_colab in readme and in_kaggle in readme
    assert f'\\"https://github.com/{here}\\"' in notebook
    assert re.search(r"\[The whole course as a book\]\(https://[^)]+\)", readme)


def test_the_first_release_fills_in_every_address(tmp_path: Path) -> None:
    """Later ones find nothing left to fill in."""
    (tmp_path / "docs").mkdir()
    readme, notebook = tmp_path / "README.md", tmp_path / "docs" / "colab.ipynb"
    readme.write_text(
        "https://OWNER.github.io/REPOSITORY https://codespaces.new/OWNER/REPOSITORY\n"
    )
    notebook.write_text("https://github.com/OWNER/REPOSITORY/blob OWNER/NAME\n")
    for name in ("ada/engine", "ben/other"):
        words = [str(FILL), name, "https://ada.github.io/engine/"]
        subprocess.run(words, cwd=tmp_path, check=True)
    assert readme.read_text() == "https://ada.github.io/engine https://codespaces.new/ada/engine\n"
    assert notebook.read_text() == "https://github.com/ada/engine/blob OWNER/NAME\n"
    assert len(list(tmp_path.rglob("*.*"))) == 2
