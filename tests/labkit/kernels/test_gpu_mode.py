"""The parts of GPU mode that need no GPU: guard bands, the protocol of timing, and its numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from labkit.kernels import timing
from labkit.kernels.cases import build
from labkit.kernels.guard import BAND_BYTES, Guarded, guard_all


def around(guarded: Guarded) -> torch.Tensor:
    """The memory of a guarded tensor as elements, with one band on either side."""
    return guarded._memory.view(guarded.view.dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int32])
def test_a_guarded_tensor_is_the_same_tensor(dtype: torch.dtype) -> None:
    tensor = torch.arange(24).view(4, 6).to(dtype)[:, 1:4]
    guarded = Guarded(tensor, "cpu")
    assert torch.equal(guarded.view, tensor) and guarded.view.stride() == tensor.stride()
    assert guarded.damage(False) == ""


@pytest.mark.parametrize(
    ("offset", "where"), [(-1, "before the start"), (3, "between the rows"), (21, "behind the end")]
)
def test_a_write_outside_is_found(offset: int, where: str) -> None:
    """A slice [:, 0:3] of [4, 6] spans 21 elements."""
    guarded = Guarded(torch.zeros(4, 6)[:, :3], "cpu")
    around(guarded)[BAND_BYTES // 4 + offset] = 1.0
    assert where in guarded.damage(True) and "4 bytes" in guarded.damage(True)


def test_what_lies_around_is_nan_for_floats() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        assert around(Guarded(torch.zeros(8, dtype=dtype), "cpu"))[0].isnan()


def test_an_input_must_stay_and_an_output_may_change() -> None:
    guarded = Guarded(torch.zeros(3, 2), "cpu")
    guarded.view[2, 1] = 5.0
    assert guarded.damage(True) == ""
    assert "[2, 1]" in guarded.damage(False)
    only_last_row = torch.tensor([[False], [False], [True]])
    assert guarded.damage(only_last_row) == ""
    guarded.reset()
    assert guarded.damage(False) == ""
    guarded.reset(output=True)
    assert guarded.view.isnan().all() and guarded.damage(False) == ""


def test_a_whole_problem_is_guarded() -> None:
    problem, _ = build("paged_decode", "ragged", 1)
    guarded = guard_all(problem, "cpu")
    assert set(guarded) == {k for k, v in problem.items() if isinstance(v, torch.Tensor)}
    assert all(each.damage(False) == "" for each in guarded.values())


class FakeClock:
    """A clock on which launch n takes as long as a script says, and wall time follows."""

    def __init__(self, script: Callable[[int], float]) -> None:
        self.script, self.now, self.launched = script, 0.0, list[str]()

    def time(self, launch: Callable[[], None]) -> float:
        launch()
        microseconds = self.script(len(self.launched))
        self.now += microseconds / 1e6
        return microseconds

    def wall(self) -> float:
        return self.now

    def candidate(self, name: str, sets: int = 3) -> list[Callable[[], None]]:
        return [lambda i=i: self.launched.append(f"{name}{i}") for i in range(sets)]  # type: ignore[misc]


def test_candidates_take_turns_on_changing_inputs() -> None:
    clock = FakeClock(lambda n: 10_000.0)
    samples = timing.interleave(clock, {"a": clock.candidate("a"), "b": clock.candidate("b")})
    assert clock.launched[:8] == ["a0", "b0", "a1", "b1", "a2", "b2", "a0", "b0"]
    assert len(samples["a"]) == len(samples["b"]) == timing.MIN_SAMPLES


def test_short_kernels_are_repeated_and_long_ones_end() -> None:
    fast = FakeClock(lambda n: 50.0)
    samples = timing.interleave(fast, {"a": fast.candidate("a")})
    assert sum(samples["a"]) >= timing.MIN_MICROSECONDS
    slow = FakeClock(lambda n: 500_000.0)
    samples = timing.interleave(slow, {"a": slow.candidate("a"), "b": slow.candidate("b")})
    assert len(samples["a"]) == 4  # 2 s for each of the two, in turns


def test_pairs_cancel_a_drift_that_the_medians_do_not_see() -> None:
    """Clocks fall while two equal kernels are timed: each pair still has the ratio 1."""
    drift = [100.0 * 1.05**i for i in range(20)]
    assert timing.paired_ratio(drift, drift) == 1.0
    assert timing.paired_ratio([2 * t for t in drift], drift) == pytest.approx(2.0)
    assert timing.summarise(drift).noisy


def test_quantiles() -> None:
    times = timing.summarise([5.0, 1.0, 2.0, 3.0, 4.0, 100.0])
    assert (times.p20, times.median, times.p80) == pytest.approx((2.0, 3.5, 5.0))
    assert times.samples == 6 and times.noisy
    assert not timing.summarise([10.0] * 30).noisy
    with pytest.raises(ValueError, match="no samples"):
        timing.summarise([])


def test_a_time_below_the_floor_or_with_work_elsewhere_is_not_believed() -> None:
    honest = timing.summarise([100.0] * 30)
    assert timing.suspicion(honest, 90.0, 100.0, 140.0) == ""
    assert "less than 90%" in timing.suspicion(honest, 120.0, 100.0, 100.0)
    assert "elsewhere" in timing.suspicion(honest, 90.0, 100.0, 200.0)
