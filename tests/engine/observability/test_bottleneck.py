"""What bounds a step, and which function of a flame graph to mend."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path

import pytest

from labkit.course.root import find_root
from mini_vllm.observability.bottleneck import (
    StepProfile,
    amdahl,
    classify_step,
    read_stacks,
    read_step_profile,
    which_to_mend,
)

H100 = StepProfile(2.27e-3, 1.24e-3, 1, 10e-6, 0.40e-3, 0.02e-3)
"""A decode step in which a graph is replayed: the device waits for 1.03 ms of it."""


def test_the_h100_s_step_waits_for_the_host_first() -> None:
    bound = classify_step(H100)
    assert bound.by == "scheduler"
    assert bound.seconds == pytest.approx(1.02e-3) and bound.factor == pytest.approx(
        1.816, abs=1e-3
    )
    mended = classify_step(replace(H100, seconds=1.25e-3))
    assert mended.by == "memory" and mended.factor == pytest.approx(1.25 / 0.41, abs=1e-2)


@pytest.mark.parametrize(
    ("profile", "by"),
    [
        (replace(H100, num_launches=100), "launches"),
        (replace(H100, seconds=1.3e-3, arithmetic_seconds=1.0e-3), "arithmetic"),
        (StepProfile(1.0, 1.0, 0, 0.0, 0.98, 0.1), "memory"),
        (StepProfile(1.0, 0.95, 10, 0.004, 0.1, 0.94), "arithmetic"),
        (StepProfile(1.0, 0.0, 10, 0.004, 0.0, 0.0), "scheduler"),
    ],
)
def test_what_bounds_a_step(profile: StepProfile, by: str) -> None:
    assert classify_step(profile).by == by
    assert classify_step(profile).factor >= 1


def test_a_step_is_not_shorter_than_its_kernels() -> None:
    with pytest.raises(ValueError, match=r"kernels take 2\.0 s of a step of 1\.0 s"):
        classify_step(StepProfile(1.0, 2.0, 1, 0.0, 0.0, 0.0))


def test_amdahl() -> None:
    assert amdahl(0.5, 2) == pytest.approx(4 / 3) and amdahl(0.5, math.inf) == 2
    assert amdahl(0.0, 10) == 1 and amdahl(1.0, math.inf) == math.inf
    with pytest.raises(ValueError, match=r"share is 1\.5"):
        amdahl(1.5, 2)


def test_the_function_with_time_of_its_own_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "stacks.txt"
    path.write_text("step;schedule;scan 4\nstep;schedule;scan 2\nstep;forward 3\nstep;w;w;w 1\n")
    stacks = read_stacks(path)
    found = {one.name: one for one in which_to_mend(stacks)}
    assert next(iter(found)) == "scan"
    assert found["scan"].own == 0.6 and found["scan"].factor == pytest.approx(2.5)
    assert found["schedule"].own == 0 and found["schedule"].whole == 0.6
    assert found["w"].whole == 0.1, "a function that calls itself counts once"
    assert found["step"].factor == math.inf
    assert which_to_mend({}) == []


@pytest.mark.parametrize("name", ["cpu", "h100"])
def test_the_profiles_of_phase_19(name: str) -> None:
    folder = find_root() / "phases" / "19-performance-engineer" / "profiles"
    profile = read_step_profile(folder / f"{name}.toml")
    assert all(getattr(profile, field.name) >= 0 for field in fields(profile))
    assert classify_step(profile).factor > 1
