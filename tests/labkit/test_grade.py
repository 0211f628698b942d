"""`labkit grade`: the hidden suite of a real phase, on the reference and on the skeleton."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.loop import course
from labkit.skeleton import skeleton

ROOT = Path(__file__).parents[2]


def grade(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "labkit", "grade", *words],
        cwd=ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_reference_gets_all_points() -> None:
    done = grade("00", "--seed", "7", LAB="reference")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "seed 7" in done.stdout
    assert "hidden 12/12 · 40 of 40 points" in done.stdout


def test_a_skeleton_gets_none_and_hears_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from labkit import grade as module

    phase = course().phase("00")
    file = tmp_path / "request.py"
    file.write_text(skeleton(phase, phase.modules[0]), encoding="utf-8")
    monkeypatch.setattr(module.overlay, "mapping_for", lambda _: {phase.modules[0]: str(file)})
    result = module.run(phase, seed=7)
    assert result.public[0] == 0
    assert len(result.tests) == 12


def test_a_planned_phase_says_what_is_coming() -> None:
    done = grade("08")
    assert done.returncode == 1
    assert "not built yet" in done.stdout
