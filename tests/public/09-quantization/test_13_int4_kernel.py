"""Task 09.13: kernel: 4-bit weights, unpacked while they are multiplied."""

from __future__ import annotations

from typing import Any

SPEC = "w4a16_gemm"


def test_09_13_one_word(lab: Any) -> None:
    """Eight columns are one word."""
    lab.check_kernel(SPEC, "1 x 8 times 2 x 8", lab.cases.w4a16(1, 2, 8))


def test_09_13_groups(lab: Any) -> None:
    """Four groups of 16, each with its own scale and zero."""
    lab.check_kernel(SPEC, "4 groups a row", lab.cases.w4a16(2, 3, 64, 4))


def test_09_13_a_group_that_ends_inside_a_tile(lab: Any) -> None:
    """144 columns in three groups of 48, in tiles of 64."""
    lab.check_kernel(SPEC, "3 groups of 48", lab.cases.w4a16(2, 3, 144, 3))


def test_09_13_a_last_word_that_is_not_full(lab: Any) -> None:
    """21 columns: the third word has five."""
    lab.check_kernel(SPEC, "21 columns", lab.cases.w4a16(2, 3, 21, 3))


def test_09_13_more_than_a_tile_everywhere(lab: Any) -> None:
    """17 tokens, 66 rows, 72 columns."""
    lab.check_kernel(SPEC, "17 x 72 times 66 x 72", lab.cases.w4a16(17, 66, 72))


def test_09_13_x_is_a_slice(lab: Any) -> None:
    """Tokens lie x_stride apart."""
    lab.check_kernel(SPEC, "a slice of a wider matrix", lab.cases.w4a16(3, 4, 16, 2, strided=True))
