"""Task 19.4: which function of a flame graph to mend."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from labkit.course.root import find_root
from labkit.testing import expect
from mini_vllm.observability.bottleneck import amdahl, read_stacks, which_to_mend

STACKS = {
    ("step", "schedule", "scan"): 5.0,
    ("step", "schedule"): 1.0,
    ("step", "forward"): 3.0,
    ("step", "detokenize", "scan"): 1.0,
}


def by_name(stacks: Any) -> dict[str, Any]:
    """The candidates by their names."""
    return {one.name: one for one in which_to_mend(stacks)}


def test_19_4_a_part_of_the_whole_becomes_faster(near: Any) -> None:
    """Half of the time, twice as fast: three quarters are left."""
    near(amdahl(0.5, 2), 4 / 3, at="a share of 0.5, 2 times as fast")
    near(amdahl(0.9, 10), 1 / 0.19, at="a share of 0.9, 10 times as fast")
    near(amdahl(0.5, 0.5), 2 / 3, at="a share of 0.5, half as fast")
    near(amdahl(0.0, 10), 1.0, at="a share of nothing")


def test_19_4_what_is_left_is_the_limit(near: Any) -> None:
    """A fifth of the time is free: no more than 1.25."""
    near(amdahl(0.2, math.inf), 1.25, at="a share of 0.2 that is free")
    expect(amdahl(1.0, math.inf), math.inf, at="all of it is free")


def test_19_4_shares_that_cannot_be() -> None:
    """More than all, less than nothing; and a factor that is none."""
    for share, faster in ((1.1, 2), (-0.1, 2), (0.5, 0), (0.5, -1)):
        with pytest.raises(ValueError):
            amdahl(share, faster)


def test_19_4_own_time_and_time_with_calls(near: Any) -> None:
    """scan has 6 of 10 in two towers; schedule 1 of its own, 6 with what it calls."""
    found = by_name(STACKS)
    for name, own, whole in (
        ("scan", 0.6, 0.6), ("schedule", 0.1, 0.6), ("forward", 0.3, 0.3), ("step", 0.0, 1.0),
    ):  # fmt: skip
        near(found[name].own, own, at=f"{name}: own")
        near(found[name].whole, whole, at=f"{name}: whole")


def test_19_4_the_most_time_of_its_own_comes_first() -> None:
    """Not the widest: step holds everything, and has nothing to mend."""
    names = [one.name for one in which_to_mend(STACKS)]
    at = "own 6, 3, 1, 0, 0 of 10; step is wider than detokenize"
    expect(names, ["scan", "forward", "schedule", "step", "detokenize"], at=at)


def test_19_4_equal_ones_stand_by_width_and_name() -> None:
    """Three with the same time of their own; b also calls c."""
    names = [one.name for one in which_to_mend({("a",): 1.0, ("b",): 1.0, ("b", "c"): 1.0})]
    expect(names, ["b", "a", "c"], at="own 1 each, b calls c")


def test_19_4_the_bound_is_of_the_function_and_its_calls(near: Any) -> None:
    """If schedule and what it calls were free, 4 of 10 would be left."""
    found = by_name(STACKS)
    near(found["schedule"].factor, 2.5, at="schedule, 6 of 10: factor")
    near(found["forward"].factor, 10 / 7, at="forward, 3 of 10: factor")
    expect(found["step"].factor, math.inf, at="step, 10 of 10: factor")


def test_19_4_a_function_that_calls_itself_counts_once(near: Any) -> None:
    """walk stands three times in one stack, and is there for 2 of 8 seconds."""
    found = by_name({("step", "walk", "walk", "walk"): 2.0, ("step",): 6.0})
    near(found["walk"].whole, 0.25, at="walk calls walk calls walk: whole")
    near(found["walk"].factor, 4 / 3, at="walk calls walk calls walk: factor")


def test_19_4_time_of_no_function_counts_for_the_whole(near: Any) -> None:
    """An empty stack: 5 of 10 seconds belong to no function."""
    found = by_name({(): 5.0, ("step",): 5.0})
    expect(list(found), ["step"], at="functions")
    near(found["step"].whole, 0.5, at="step, 5 of 10: whole")


def test_19_4_without_time_there_is_none() -> None:
    """No stack, and stacks of no time."""
    expect(which_to_mend({}), [], at="no stacks")
    expect(which_to_mend({("step",): 0.0}), [], at="a stack of no time")


def test_19_4_the_recorded_stacks() -> None:
    """The engine on a CPU: the decoder's layers, written in C++, take the most."""
    folder = find_root() / "phases" / "19-performance-engineer" / "profiles"
    first = which_to_mend(read_stacks(Path(folder, "cpu-stacks.txt")))[0]
    expect(first.name, "mini_vllm/kernels/native.py:decoder_layers", at="cpu-stacks.txt: the first")
    expect(round(first.factor, 2), 1.32, at="cpu-stacks.txt: factor of the first")
