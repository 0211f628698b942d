"""Task 11.8: the shrink kernel. Unused slots are NaN, and reading them is noticed."""

from __future__ import annotations

from typing import Any


def test_11_8_one_row(lab: Any) -> None:
    """One row with slot 0."""
    lab.check_shrink("one row, in 8, rank 4", [1], 0, padding=0)


def test_11_8_rows_through_the_list(lab: Any) -> None:
    """Rows of two adapters and the base, mixed."""
    lab.check_shrink("3 rows of slot 0, 2 of slot 1, 2 of the base", [3, 2], 2)


def test_11_8_a_slot_that_no_row_uses(lab: Any) -> None:
    """Slots 0 and 2 are other customers': the rows use slots 1 and 3."""
    lab.check_shrink("2 rows of slot 1, 1 of slot 3", [0, 2, 0, 1], 1, padding=2)


def test_11_8_a_segment_longer_than_a_tile(lab: Any) -> None:
    """70 rows of one slot take several tiles."""
    lab.check_shrink("70 rows of slot 0", [70], 3)


def test_11_8_inputs_of_more_than_a_tile(lab: Any) -> None:
    """150 inputs in tiles of 64: the last has 22."""
    lab.check_shrink("150 inputs", [2, 1], 0, in_size=150)


def test_11_8_three_slices(lab: Any) -> None:
    """Each slice has an A of its own, and a table of its own in hidden."""
    lab.check_shrink("3 slices, slots 0 and 1", [2, 3], 1, slices=3)


def test_11_8_rank_20(lab: Any) -> None:
    """A rank that is no power of two: lanes behind it touch nothing."""
    lab.check_shrink("rank 20", [2, 2], 1, rank=20)


def test_11_8_rows_of_a_wider_matrix(lab: Any) -> None:
    """Rows of x lie x_stride apart."""
    lab.check_shrink("x is a slice of a wider matrix", [2, 2], 1, strided=True)


def test_11_8_no_row_has_an_adapter(lab: Any) -> None:
    """Only the base: nothing is written."""
    lab.check_shrink("3 rows of the base", [0, 0], 3)
