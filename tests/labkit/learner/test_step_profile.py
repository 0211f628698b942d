"""`make profile ARGS="--save FOLDER"`: what is written can be read again."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.course.root import ROOT
from labkit.learner import step_profile
from mini_vllm.observability.bottleneck import (
    StepProfile,
    read_stacks,
    read_step_profile,
    which_to_mend,
)
from mini_vllm.observability.roofline import Machine


def test_what_is_saved_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = StepProfile(1.25e-3, 0.5e-3, 50, 1e-6, 0.25e-3, 0.125e-3)
    monkeypatch.setattr(step_profile, "measure_step", lambda: (profile, Machine(1e11, 1e10)))
    outside, inside = ("python:main",), ("mini_vllm/a.py:A.step", "torch/nn.py:call")
    stacks = {(*outside, *inside): 0.004, ("other:main", *inside): 0.002, outside: 0.001}
    step_profile.save_figures(tmp_path / "new", stacks)
    assert read_step_profile(tmp_path / "new" / "cpu.toml") == profile
    found = read_stacks(tmp_path / "new" / "cpu-stacks.txt")
    assert found == pytest.approx({inside: 0.006, outside: 0.001}), "from the engine's first on"


def test_calls_are_timed_and_the_method_comes_back() -> None:
    class Model:
        def forward(self) -> int:
            return 7

    model, spent = Model(), [0.0, 0.0]
    with step_profile.timed(model, "forward", spent):
        assert model.forward() == 7
    assert spent[0] == 0.0 < spent[1] and "forward" not in vars(model)


def test_the_recording_of_phase_19_names_what_the_engine_has() -> None:
    """Of the functions with the most time of their own: a learner looks them up."""
    recorded = ROOT / "phases" / "19-performance-engineer" / "profiles" / "cpu-stacks.txt"
    first = [one.name for one in which_to_mend(read_stacks(recorded))[:5]]
    ours = [name for name in first if name.startswith("mini_vllm/")]
    assert ours, first
    for one in ours:
        file, _, name = one.partition(":")
        assert f"def {name.rpartition('.')[2]}(" in (ROOT / file).read_text("utf-8"), one
