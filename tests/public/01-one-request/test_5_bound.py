"""Task 01.5: intensity, the least time, and the bound."""

from __future__ import annotations

import pytest

from labkit.testing import expect
from mini_vllm.observability.roofline import (
    Machine,
    StepCost,
    arithmetic_intensity,
    bound_of,
    least_seconds,
)

# A machine that computes 100 operations for each byte that it moves.
MACHINE = Machine(flops_per_s=1000.0, bytes_per_s=10.0)
DECODE = StepCost(flops=2000.0, bytes=2000.0)
PREFILL = StepCost(flops=600_000.0, bytes=3000.0)


@pytest.mark.parametrize(
    ("cost", "expected"), [(DECODE, 1.0), (PREFILL, 200.0)], ids=["decode", "prefill"]
)
def test_01_5_intensity_is_operations_per_byte(cost: StepCost, expected: float) -> None:
    """FLOPs divided by bytes; the machine plays no part."""
    at = f"{cost.flops:,.0f} FLOPs, {cost.bytes:,.0f} bytes"
    expect(arithmetic_intensity(cost), expected, at=at)


LEAST = [
    (DECODE, 200.0, 2.0),
    (PREFILL, 300.0, 600.0),
    (StepCost(flops=1000.0, bytes=10.0), 1.0, 1.0),
    (StepCost(flops=2000.0, bytes=20.0), 2.0, 2.0),
]


@pytest.mark.parametrize(
    ("cost", "moving", "computing"), LEAST, ids=["decode", "prefill", "1 s each", "2 s each"]
)
def test_01_5_the_slower_side_sets_the_time(
    cost: StepCost, moving: float, computing: float
) -> None:
    """Moving and computing overlap: the step takes the longer of the two."""
    at = f"moves for {moving:g} s, computes for {computing:g} s"
    expect(least_seconds(cost, MACHINE), max(moving, computing), at=at)


def test_01_5_a_decode_is_bound_by_memory() -> None:
    """1 operation per byte on a machine that offers 100: the bytes are late."""
    expect(bound_of(DECODE, MACHINE), "memory", at="moves for 200 s, computes for 2 s")


def test_01_5_a_prefill_is_bound_by_compute() -> None:
    """200 operations per byte on a machine that offers 100: the operations are late."""
    expect(bound_of(PREFILL, MACHINE), "compute", at="moves for 300 s, computes for 600 s")


def test_01_5_more_operations_than_bytes_is_not_enough() -> None:
    """50 operations per byte are many, but this machine offers 100."""
    middle = StepCost(flops=50_000.0, bytes=1000.0)
    expect(bound_of(middle, MACHINE), "memory", at="moves for 100 s, computes for 50 s")
    expect(least_seconds(middle, MACHINE), 100.0, at="moves for 100 s, computes for 50 s")
