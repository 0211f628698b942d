"""Task 11.9: the expand kernel. Rows without an adapter may not even be read."""

from __future__ import annotations

from typing import Any


def test_11_9_one_row(lab: Any) -> None:
    """One row with slot 0: y keeps W x and gets the delta."""
    lab.check_expand("one row, 8 columns, rank 4", [1], 0, padding=0)


def test_11_9_rows_through_the_list(lab: Any) -> None:
    """Rows of two adapters and the base, mixed."""
    lab.check_expand("3 rows of slot 0, 2 of slot 1, 2 of the base", [3, 2], 2)


def test_11_9_a_slot_that_no_row_uses(lab: Any) -> None:
    """Slots 0 and 2 are other customers'."""
    lab.check_expand("2 rows of slot 1, 1 of slot 3", [0, 2, 0, 1], 1, padding=2)


def test_11_9_a_segment_longer_than_a_tile(lab: Any) -> None:
    """70 rows of one slot take several tiles."""
    lab.check_expand("70 rows of slot 0", [70], 3)


def test_11_9_more_columns_than_a_tile(lab: Any) -> None:
    """150 columns in tiles of 128: the last has 22."""
    lab.check_expand("150 columns", [2, 1], 0, widths=[150])


def test_11_9_slices_of_unequal_width(lab: Any) -> None:
    """Queries of 80 columns, keys and values of 24: each slice has its own h."""
    lab.check_expand("slices of 80, 24, 24", [2, 3], 1, widths=[80, 24, 24])


def test_11_9_rank_20(lab: Any) -> None:
    """A rank that is no power of two."""
    lab.check_expand("rank 20", [2, 2], 1, rank=20)


def test_11_9_rows_of_a_wider_matrix(lab: Any) -> None:
    """Rows of y lie y_stride apart."""
    lab.check_expand("y is a slice of a wider matrix", [2, 2], 1, strided=True)


def test_11_9_no_row_has_an_adapter(lab: Any) -> None:
    """Only the base: y keeps every bit."""
    lab.check_expand("3 rows of the base", [0, 0], 3)
