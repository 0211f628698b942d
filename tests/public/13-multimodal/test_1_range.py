"""13.1: which rows of the encoder's output a part of an image takes."""

from __future__ import annotations

import pytest

from labkit.testing import expect
from mini_vllm.mm_features import PlaceholderRange

MASK = (False, True, False, True, True)


@pytest.mark.parametrize(("start", "end"), [(0, 5), (2, 4), (0, 0), (5, 5)])
def test_13_1_without_a_mask_rows_are_positions(start: int, end: int) -> None:
    """Without a mask every position takes a row."""
    place = PlaceholderRange(7, 5)
    yours = place.get_embeds_indices_in_range(start, end)
    expect(yours, (start, end), at=f"positions {start} .. {end} of 5")


@pytest.mark.parametrize(
    ("start", "end", "rows"),
    [
        (3, 5, (1, 3)),
        (0, 5, (0, 3)),
        (0, 1, (0, 0)),
        (2, 3, (1, 1)),
        (1, 2, (0, 1)),
        (0, 0, (0, 0)),
    ],
)
def test_13_1_with_a_mask_rows_are_counted(start: int, end: int, rows: tuple[int, int]) -> None:
    """Separators take no row."""
    yours = PlaceholderRange(2, 5, MASK).get_embeds_indices_in_range(start, end)
    expect(yours, rows, at=f"positions {start} .. {end}", is_embed=MASK)
