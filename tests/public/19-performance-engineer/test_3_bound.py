"""Task 19.3: what bounds a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from labkit.course.root import find_root
from labkit.testing import expect
from mini_vllm.observability.bottleneck import StepProfile, classify_step, read_step_profile

PROFILES = Path("phases", "19-performance-engineer", "profiles")


def step(
    seconds: float, kernels: float, launches: int = 0, launch: float = 0.0, memory: float = 0.0,
    arithmetic: float = 0.0,
) -> StepProfile:  # fmt: skip
    """A step in milliseconds, for short lines."""
    return StepProfile(seconds, kernels, launches, launch, memory, arithmetic)


@pytest.mark.parametrize(
    ("profile", "by", "saved"),
    [
        (step(10, 2, 100, 0.05, 1.0), "launches", 5.0),
        (step(10, 2, 20, 0.05, 1.0), "scheduler", 7.0),
        (step(10, 9, 2, 0.1, 2.0, 1.0), "memory", 7.0),
        (step(10, 9, 2, 0.1, 1.0, 2.0), "arithmetic", 7.0),
    ],
)
def test_19_3_the_largest_part_that_could_go(
    near: Any, profile: StepProfile, by: str, saved: float
) -> None:
    """Launches, the rest of the wait, or what kernels take above their floor."""
    bound = classify_step(profile)
    expect(bound.by, by, at="by", profile=profile)
    near(bound.seconds, saved, at="seconds", profile=profile)
    near(bound.factor, 10 / (10 - saved), at="factor", profile=profile)


def test_19_3_launches_fill_the_wait_at_most(near: Any) -> None:
    """200 launches of 0.05 are 10, but most of them ran beside the kernels: the wait is 4."""
    bound = classify_step(step(10, 6, 200, 0.05, 3.0))
    expect(bound.by, "launches", at="10 of launches in a wait of 4: by")
    near(bound.seconds, 4.0, at="10 of launches in a wait of 4: seconds")


def test_19_3_launches_leave_the_rest_to_the_scheduler(near: Any) -> None:
    """A wait of 6, of which launches are 2."""
    bound = classify_step(step(10, 4, 40, 0.05, 3.0))
    expect(bound.by, "scheduler", at="a wait of 6, launches of 2: by")
    near(bound.seconds, 4.0, at="a wait of 6, launches of 2: seconds")


def test_19_3_the_floor_is_the_longer_of_the_two(near: Any) -> None:
    """Bytes and operations go on side by side: 3 and 7 are a floor of 7, not of 10."""
    bound = classify_step(step(20, 19, 0, 0.0, 3.0, 7.0))
    expect(bound.by, "arithmetic", at="memory 3, arithmetic 7: by")
    near(bound.seconds, 12.0, at="kernels 19 above a floor of 7: seconds")


def test_19_3_equal_floors_are_called_memory() -> None:
    """Reading is what decode does."""
    expect(classify_step(step(10, 9, 0, 0.0, 2.0, 2.0)).by, "memory", at="both floors are 2: by")


def test_19_3_at_its_floor_the_floor_bounds_it(near: Any) -> None:
    """Kernels of 9 with a floor of 8.5: little is to be had, and the floor takes the time.

    The wait of 1 is more than the 0.5 above the floor, but less than the floor.
    """
    bound = classify_step(step(10, 9, 4, 0.05, 2.0, 8.5))
    expect(bound.by, "arithmetic", at="kernels 9 of 10, floor 8.5: by")
    near(bound.seconds, 0.5, at="kernels 9 of 10, floor 8.5: seconds")
    near(bound.factor, 10 / 9.5, at="kernels 9 of 10, floor 8.5: factor")


def test_19_3_a_floor_counts_only_where_the_device_works(near: Any) -> None:
    """Kernels of 4 at a floor of 4, and a wait of 6: the device waits longer than it works."""
    bound = classify_step(step(10, 4, 50, 0.05, 4.0))
    expect(bound.by, "scheduler", at="kernels 4 of 10, floor 4, launches 2.5: by")
    near(bound.seconds, 3.5, at="kernels 4 of 10, floor 4, launches 2.5: seconds")


def test_19_3_kernels_below_their_floor_save_nothing(near: Any) -> None:
    """A cache can be faster than the memory that the floor was measured with."""
    bound = classify_step(step(10, 8, 0, 0.0, 9.0))
    expect(bound.by, "memory", at="kernels 8, floor 9: by")
    near(bound.seconds, 0.0, at="kernels 8, floor 9: seconds")
    near(bound.factor, 1.0, at="kernels 8, floor 9: factor")


def test_19_3_the_recorded_steps() -> None:
    """An H100's and a CPU's: both wait for the host, for other reasons than launches."""
    for name, factor in (("cpu", 1.87), ("h100", 1.82)):
        bound = classify_step(read_step_profile(find_root() / PROFILES / f"{name}.toml"))
        expect(bound.by, "scheduler", at=f"{name}.toml: by")
        expect(round(bound.factor, 2), factor, at=f"{name}.toml: factor")


def test_19_3_what_cannot_be_is_refused() -> None:
    """Kernels that take longer than the step, a step of no length, times below 0."""
    for wrong in (
        step(1, 2), step(0, 0), step(1, -0.5), step(1, 0.5, memory=-1.0),
        step(1, 0.5, arithmetic=-1.0), step(1, 0.5, 3, -0.1),
    ):  # fmt: skip
        with pytest.raises(ValueError):
            classify_step(wrong)


def test_19_3_rounding_is_not_refused() -> None:
    """Two clocks: kernels of 1.0005 in a step of 1. Nothing is waited for."""
    bound = classify_step(step(1, 1.0005, 1, 0.1, 1.0))
    expect(bound.by, "memory", at="kernels 1.0005 of a step of 1: by")
