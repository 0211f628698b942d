"""The wheel holds what the engine needs at run time, the bundled models included."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from labkit.course.root import find_root


@pytest.mark.slow
def test_every_tracked_file_of_the_packages_is_in_the_wheel(tmp_path: Path) -> None:
    """Built from a copy, for a build leaves folders behind."""
    listed = ["git", "ls-files", "mini_vllm", "labkit", "pyproject.toml", "README.md", "LICENSE"]
    root = find_root()
    names = subprocess.run(listed, cwd=root, capture_output=True, text=True, check=True)
    for name in names.stdout.split():
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, tmp_path / "source" / name)
    words = ["-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    built = subprocess.run(
        [sys.executable, *words, str(tmp_path / "source")], capture_output=True, text=True
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    wanted = {name for name in names.stdout.split() if "/" in name}
    assert "mini_vllm/bundled/storyteller/model.safetensors" in wanted
    assert not sorted(wanted - inside)
